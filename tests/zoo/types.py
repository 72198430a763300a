"""Types other than float32: half and bfloat16 models, float64, integers, masks, casts inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, Inputs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class SoftmaxInFloat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x), dim=-1, dtype=torch.float32).to(x.dtype)


class CastInside(nn.Module):
    """A float32 model whose middle runs in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x.to(torch.bfloat16))
        return y.to(x.dtype) * x


class Pixels(nn.Module):
    """Bytes of an image to normalised floats."""

    def forward(self, image: Tensor) -> Tensor:
        return (image.float() / 255.0 - 0.5) / 0.25


class IntegerArithmetic(nn.Module):
    def forward(self, index: Tensor) -> Tensor:
        return (index * 2 + 1) % 7


class BooleanInput(nn.Module):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return torch.tanh(x) * keep + (~keep) * 0.5


class Bucketed(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return torch.sigmoid(x) + index.to(x.dtype).div(3.0)


def typed(dtype: torch.dtype, *shape: int) -> Inputs:
    return lambda n: (torch.randn(n, *shape, dtype=dtype),)


F64 = "float64 stays with ATen"

CASES = [
    Case("half_block", lambda: Block().half(), typed(torch.float16, 8)),
    Case("bfloat16_block", lambda: Block().bfloat16(), typed(torch.bfloat16, 3, 8)),
    Case("half_sequential", lambda: nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.GroupNorm(2, 8))
         .half(), typed(torch.float16, 8)),
    Case("bfloat16_conv_batch_norm",
         lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).bfloat16(),
         typed(torch.bfloat16, 3, 5, 5), mode="eval", mode_matters=True),
    Case("bfloat16_softmax_in_float", lambda: SoftmaxInFloat().bfloat16(),
         typed(torch.bfloat16, 8)),
    Case("float64_block", lambda: Block().double(), typed(torch.float64, 8), only_aten=F64),
    Case("float64_activation", nn.Softplus, typed(torch.float64, 8), only_aten=F64),
    Case("cast_inside", CastInside, typed(torch.float32, 8)),
    Case("pixels", Pixels, lambda n: (torch.randint(256, (n, 3, 4, 4), dtype=torch.uint8),)),
    Case("integer_arithmetic", IntegerArithmetic, lambda n: (torch.randint(50, (n, 5)),),
         only_aten="integers stay with ATen"),
    Case("boolean_input", BooleanInput, lambda n: (torch.randn(n, 5), torch.rand(n, 5) > 0.5)),
    Case("integer_input", Bucketed, lambda n: (torch.randn(n, 5), torch.randint(9, (n, 5)))),
]  # fmt: skip
