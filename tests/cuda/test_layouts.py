"""Values in either order on the GPU: turned blocks, chains in channels_last, what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.accuracy import is_tf32
from kernelwright.gauge import relative_error
from kernelwright.pipeline import compile_problem
from kernelwright.plan import CHANNELS_LAST
from kernelwright.problem import problem_from_module

Tensor = torch.Tensor
CUDA = torch.device("cuda", 0)


class Written(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.written = forward
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, *x: Tensor) -> Any:
        return self.written(self, *x)


def there(m: Any, x: Tensor) -> Tensor:
    return (x * m.scale).permute(0, *range(2, x.dim()), 1).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "shape",
    [
        (3, 64, 14, 14),
        (5, 3, 32, 32),
        (2, 6, 7, 9),
        (2, 13, 31, 33),
        (2, 64, 5, 10),
        (2, 4, 6, 5, 8),
    ],
)
def test_turned_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, device=CUDA, dtype=dtype)
    module = Written(there).to(CUDA, dtype)
    made = compile_problem(problem_from_module(module, (x,)))
    assert [k.config.shape for k in made.kernels] == ["turned"]
    fused = made.instantiate()
    for batch in (shape[0], 1, 7):
        again = torch.randn((batch, *shape[1:]), device=CUDA, dtype=dtype)
        assert torch.equal(fused(again), module(again))
    assert not fused.fallbacks


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.up((self.second(y) + y).relu()).tanh()


def test_a_chain_in_channels_last() -> None:
    torch.manual_seed(0)
    module = Chain().eval().to(CUDA)
    x = torch.randn(8, 16, 20, 20, device=CUDA)
    made = compile_problem(problem_from_module(module, (x,)), policy=CHANNELS_LAST)
    assert ".permute(0, 3, 1, 2)" in made.source
    fused = made.instantiate()
    with torch.no_grad():
        for batch in (8, 1, 3):
            again = torch.randn(batch, 16, 20, 20, device=CUDA)
            ours, theirs = fused(again), module(again)
            exact = module.double()(again.double())
            module.float()
            error = (ours - exact).square().mean().sqrt()
            eager = (theirs - exact).square().mean().sqrt()
            assert error <= 2 * eager + 1e-6
            assert ours.stride() == theirs.stride()
    assert not fused.fallbacks


def test_errors_tell_tf32_apart() -> None:
    shapes = [(8, 64, 32, 32), (64, 64, 3, 3)]
    target = "torch.ops.aten.conv2d.default"
    assert torch.backends.cudnn.allow_tf32
    found = relative_error(target, shapes, [(1, 1), (1, 1)], None, CUDA)
    assert is_tf32(found)
    torch.backends.cudnn.allow_tf32 = False
    try:
        found = relative_error(target, shapes, [(1, 1), (1, 1)], None, CUDA)
    finally:
        torch.backends.cudnn.allow_tf32 = True
    assert found is not None
    assert not is_tf32(found)
