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


class Lines(nn.Module):
    """Convolutions over one axis, each of them a plane's."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv1d(6, 20, 5, padding=2)
        self.same = nn.Conv1d(20, 20, 4, padding="same", groups=4)
        self.apart = nn.Conv1d(20, 12, 3, stride=2, dilation=2, bias=False)
        self.up = nn.ConvTranspose1d(12, 8, 3, stride=2, padding=1, output_padding=1)
        self.norm = nn.BatchNorm1d(12)
        self.weight = nn.Parameter(torch.randn(7, 8))

    def forward(self, x: Tensor) -> Any:
        y = F.gelu(self.dense(x))
        z = self.norm(self.apart(self.same(y)))
        up = self.up(z.relu())
        return y, F.max_pool1d(y, 2), z, up.softmax(2), self.weight @ up


class Returned(nn.Module):
    """What follows wants the channels first: short runs of them, weights for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 24, 3, padding=1)
        self.second = nn.Conv2d(6, 10, 3, padding=1)
        self.groups = nn.GroupNorm(4, 24)
        self.sample = nn.LayerNorm((10, 26, 30))

    def forward(self, x: Tensor) -> Any:
        y = self.second(x)
        return self.groups(F.gelu(self.first(x)) * 2), F.hardswish(self.sample(y)), y


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


@pytest.fixture(scope="module")
def lines() -> Compiled:
    torch.manual_seed(0)
    return compiled(Lines().eval(), [torch.randn(4, 6, 90)])


@pytest.fixture(scope="module")
def returned() -> Compiled:
    torch.manual_seed(0)
    return compiled(Returned(), [torch.randn(4, 6, 26, 30)])


@pytest.mark.parametrize("batch", [1, 3])
def test_tiles_compute_what_they_should(turning: Compiled, batch: int) -> None:
    assert sum(kernel.config.shape == "tiled" for kernel in turning.kernels) >= 8
    agrees(turning, operands(batch))


@pytest.mark.parametrize("batch", [1, 4])
def test_values_and_strides_are_those_of_the_model(chains: Compiled, batch: int) -> None:
    told = [str(region.why) for region in chains.planned.regions if region.kind == "contract"]
    assert len(told) == 6 and all("in channels_last" in why for why in told)
    agrees(chains, [torch.randn(batch, 6, 13, 18)])


@pytest.mark.parametrize("batch", [1, 3])
def test_lines_are_convolved_as_planes(lines: Compiled, batch: int) -> None:
    library = [region for region in lines.planned.regions if region.kind == "contract"]
    convolutions = [r for r in library if r.call is not None and "conv" in r.call.target]
    assert len(convolutions) == 4
    assert all("in channels_last" in str(region.why) for region in convolutions)
    agrees(lines, [torch.randn(batch, 6, 90)])


@pytest.mark.parametrize("batch", [1, 3])
def test_what_follows_may_have_its_channels_first(returned: Compiled, batch: int) -> None:
    """The maps before a norm turn what the library leaves, and the norm reads whole rows."""
    told = [str(region.why) for region in returned.planned.regions if region.kind == "contract"]
    assert [("stored with the channels first" in why) for why in told] == [True, True]
    tiles = [kernel for kernel in returned.kernels if kernel.config.shape == "tiled"]
    assert {"bias_gelu_mul", "bias"} <= {kernel.name for kernel in tiles}
    agrees(returned, [torch.randn(batch, 6, 26, 30)])


def agrees(made: Compiled, inputs: list[Tensor]) -> None:
    module, model = made.problem.module, made.instantiate()
    with torch.no_grad():
        for ours, theirs in zip(model(*inputs), module(*inputs), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
            assert ours.stride() == theirs.stride()
    assert not model.fallbacks
