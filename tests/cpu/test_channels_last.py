"""Convolutions in channels_last on a CPU, and the tiles that turn what they read and leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

Tensor = torch.Tensor
# Channels and places: both runs longer and shorter than a tile, vectors that end inside of them.
SHAPES = [(64, 14, 14), (3, 33, 31), (17, 2, 3), (40, 5, 3), (1, 4, 4)]


class Turning(nn.Module):
    """Operands in either order, and one for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.ParameterList(torch.randn(c) for c, _, _ in SHAPES)

    def forward(self, *x: Tensor) -> Any:
        found = []
        for last, first, bias in zip(x[::2], x[1::2], self.biases, strict=True):
            turned = last.permute(0, 3, 1, 2).contiguous() + bias[:, None, None]
            found += [turned.tanh() * first, (first * 2).permute(0, 2, 3, 1).contiguous()]
        return tuple(found)


class Chains(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 24, 3, padding=1)
        self.second = nn.Conv2d(24, 8, 1)
        self.deep = nn.Conv2d(24, 24, 5, groups=24)
        self.up = nn.ConvTranspose2d(24, 6, 2, stride=2)
        self.norm = nn.GroupNorm(4, 24)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        return (
            y,
            F.gelu(y),
            y.softmax(1),
            self.norm(y),
            y.amax(1),
            F.max_pool2d(y, 2).tanh(),
            self.second(y.relu()) * 2,
            self.deep(y).mean((2, 3)),
            self.up(torch.tanh(y)).clamp(-0.5, 0.5),
            y.permute(0, 2, 3, 1) + 1,
            self.first(x + 1).sigmoid() * self.first(x),
        )


def operands(batch: int) -> list[Tensor]:
    return [
        torch.randn(batch, *shape) for c, *sides in SHAPES for shape in ((*sides, c), (c, *sides))
    ]


def compiled(module: nn.Module, inputs: list[Tensor]) -> Compiled:
    return compile_problem(problem_from_module(module, tuple(inputs)), target="cpu")


@pytest.fixture(scope="module")
def turning() -> Compiled:
    torch.manual_seed(0)
    return compiled(Turning(), operands(4))


@pytest.fixture(scope="module")
def chains() -> Compiled:
    torch.manual_seed(0)
    return compiled(Chains().eval(), [torch.randn(4, 6, 13, 18)])


@pytest.mark.parametrize("batch", [1, 3])
def test_tiles_compute_what_they_should(turning: Compiled, batch: int) -> None:
    assert sum(kernel.config.shape == "tiled" for kernel in turning.kernels) >= 8
    agrees(turning, operands(batch))


@pytest.mark.parametrize("batch", [1, 4])
def test_values_and_strides_are_those_of_the_model(chains: Compiled, batch: int) -> None:
    told = [str(region.why) for region in chains.planned.regions if region.kind == "contract"]
    assert sum("in channels_last" in why for why in told) == 5
    agrees(chains, [torch.randn(batch, 6, 13, 18)])


def agrees(made: Compiled, inputs: list[Tensor]) -> None:
    module, model = made.problem.module, made.instantiate()
    with torch.no_grad():
        for ours, theirs in zip(model(*inputs), module(*inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
            assert ours.stride() == theirs.stride()
    assert not model.fallbacks
