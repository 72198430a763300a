"""Small models that tests/cpu/test_actions.py does things to, importable from other processes."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """A Linear, a norm and an activation of each kind of state: a flag, a constant, a submodule."""

    def __init__(self, width: int = 6, outside: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(width, outside)
        self.norm = nn.LayerNorm(outside)
        self.act = nn.LeakyReLU(0.1)
        self.scale = nn.Parameter(torch.randn(outside))
        self.use_act = True
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.fc(x))
        if self.use_act:
            x = self.act(x)
        return torch.tanh(x * self.scale) * self.factor


class Defaults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(
        self,
        x: Tensor,
        scale: float = 2.0,
        act: str = "relu",
        mask: Tensor | None = None,
        *more: Tensor,
        flip: bool = False,
        shift: Tensor | None = None,
    ) -> Tensor:
        y = getattr(torch, act)(self.fc(x)) * scale
        for extra in more:
            y = y + extra
        if mask is not None:
            y = y.masked_fill(mask, -1.0)
        if shift is not None:
            y = y - shift
        return -y if flip else y


class Counts(nn.Module):
    """Python state: the result depends on the number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return torch.tanh(self.fc(x)) * self.n


class Remembers(nn.Module):
    """The last activations are kept on the module, as people do for plots."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.fc(x))
        self.last = hidden.detach()
        return hidden * 2.0


class MoreThanFour(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if x.shape[0] > 4 else torch.relu(x) * 3.0


class MoreThanOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 1:
            x = x - x.mean(0)
        return torch.sigmoid(x)


class EvenBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0] % 2 == 0, "pairs of samples are needed"
        return torch.softmax(x, dim=-1) * 2.0


class PadsToFour(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        missing = (-x.shape[0]) % 4
        return torch.exp(F.pad(x, (0, 0, 0, missing)))


class SqueezesBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.squeeze(0)) * 2.0


class FirstHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        return torch.relu(x[:half]) + 1.0


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)[0]


class Says(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        print(tuple(x.shape))
        return x.relu()


class PoolOfTurned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d((x * self.scale).transpose(1, 2), 2)


class Elementwise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) * 2.0 + 1.0


class ChannelSoftmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)


class Twofold(nn.Module):
    """Two operands that may differ in their memory format."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x) * y


class TwoNorms(nn.Module):
    """Two BatchNorms, so that one can be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(self.fc(x)))))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.drop(F.gelu(self.fc(x)))) * 2.0


class Called(Plain):
    """`__call__` itself is overridden."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return super().__call__(*given, **named) * 3.0


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.randn(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.w)


class Itself(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x.view(-1, 3, 2), torch.relu(x) * 2.0


class Holds(nn.Module):
    """A larger module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.inner(torch.relu(self.head(x)))) + 1.0


class Parts(nn.Module):
    """Results that are parts of one value, and one that is the last place of another."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.fc(x) * 2 + 1
        return y[:, :3], y[:, 3:], (x[:, :, None] * self.fc.bias[:4] + 1)[:, -1]


class Last(nn.Module):
    """A result, its last place, and that without its history."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = (self.fc(x) * 2 + 1).reshape(-1, 2, 4)
        return y, y[:, -1], y[:, 0].detach()


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        generator = torch.Generator().manual_seed(1)
        self.down = nn.Parameter(torch.randn(2, base.in_features, generator=generator))
        self.up = nn.Parameter(torch.randn(base.out_features, 2, generator=generator))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class ShiftedNorm(nn.LayerNorm):
    """A subclass with the same attributes and another function."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1.0


def spawned(pickled: bytes, answers: Any) -> None:
    """What a spawned worker does with a module that it received; numpy needs no shared memory."""
    module, x = pickle.loads(pickled)
    answers.put((module(x).detach().numpy(), dict(module.fallbacks)))
