"""An average pool behind a convolution is one convolution: its taps, and where it is made."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from convolved import Conv
from corpus_tiles import EAGER, Everywhere
from torch import Tensor, nn
from written import Written

from kernelwright.lower import ConvKernel
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan.averages import mean_of, pooled_first
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module
from kernelwright.rules import POOL_FIRST

DENSE = {
    "line": (Conv(3, 4, (41,), (5,)), (1, 1, 3)),
    "padded": (Conv(3, 4, (13, 18), (3, 3), pads=1), (1, 2, 2)),
    "remainder": (Conv(3, 4, (13, 18), (3, 5), pads=(1, 2)), (1, 4, 3)),
    "wider than the window": (Conv(3, 4, (14, 17), (2, 1)), (1, 5, 4)),
    "down": (Conv(3, 4, (13, 18), (3, 3), pads=(2, 0)), (1, 3, 1)),
    "volume": (Conv(2, 4, (7, 9, 8), (3, 3, 3), pads=1), (2, 3, 2)),
    "groups": (Conv(6, 4, (13, 18), (3, 3), pads=1, groups=2), (1, 2, 2)),
    "single taps": (Conv(3, 4, (8, 9), (1, 1), dilations=3), (1, 2, 2)),
}
UP = {"transposed": True}
TRANSPOSED = {
    "line": (Conv(3, 4, (20,), (4,), steps=2, pads=1, **UP), (1, 1, 2)),
    "stride": (Conv(3, 4, (9, 7), (3, 3), steps=2, pads=1, extra=1, **UP), (1, 2, 2)),
    "two strides": (Conv(3, 4, (9, 11), (3, 3), steps=2, pads=1, extra=1, **UP), (1, 4, 4)),
    "three": (Conv(3, 4, (9, 11), (5, 4), steps=3, pads=2, extra=2, **UP), (1, 3, 6)),
    "no padding": (Conv(3, 4, (9, 11), (5, 5), steps=2, **UP), (1, 2, 2)),
    "thin": (Conv(3, 4, (9, 11), (1, 2), steps=3, extra=1, **UP), (1, 3, 3)),
    "of stride one": (Conv(3, 4, (9, 11), (3, 3), pads=1, **UP), (1, 2, 3)),
    "across": (Conv(3, 4, (9, 11), (3, 3), steps=(1, 2), pads=1, **UP), (1, 1, 2)),
    "volume": (Conv(2, 4, (4, 5, 6), (3, 3, 3), steps=2, pads=1, extra=1, **UP), (2, 2, 2)),
    "groups": (Conv(6, 4, (9, 7), (3, 3), steps=2, pads=1, groups=2, **UP), (1, 2, 2)),
}


def composed(form: ConvForm, weight: Tensor) -> Tensor:
    """As kernels pack it: [cout][cin / groups][window] of the weight in memory."""
    mean = form.mean
    assert mean is not None
    if mean.transposed:  # [cin][cout / groups]: the output's channels go outside, group by group
        groups = weight.unflatten(0, (form.groups, -1)).transpose(1, 2)
        weight = groups.flatten(0, 1)
    for axis, (window, size) in enumerate(zip(mean.window, mean.kernel, strict=True)):
        sums = []
        for tap in range(form.kernel[axis]):
            first = mean.first[axis] + tap * mean.step[axis]
            begin, end = max(first, 0), min(first + window, size)
            assert begin < end, "a tap that meets nothing"
            sums.append(weight.narrow(axis + 2, begin, end - begin).sum(axis + 2) / window)
        weight = torch.stack(sums, axis + 2)
    return weight


def three(tensor: Tensor) -> Tensor:
    """With the dimensions of the space that are not there in front."""
    return tensor.reshape(*tensor.shape[:2], *(1,) * (5 - tensor.dim()), *tensor.shape[2:])


def exact(conv: Conv, window: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(2, conv.cin, *conv.size, dtype=torch.float64)
    weight = torch.randn(conv.weight_shape(), dtype=torch.float64)
    return x, weight, F.avg_pool3d(three(conv.reference(x, weight)), window)


@pytest.mark.parametrize(
    ("conv", "window"),
    [*DENSE.values(), *TRANSPOSED.values()],
    ids=[*DENSE, *(f"transposed {name}" for name in TRANSPOSED)],
)
def test_means_of_windows_are_a_convolution(conv: Conv, window: tuple[int, int, int]) -> None:
    x, weight, wanted = exact(conv, window)
    form = mean_of(conv.form, window)
    assert form is not None and not form.transposed and form.out_size == tuple(wanted.shape[2:])
    # What reaches beyond the last result is cut off.
    around = [n for pad in reversed(form.padding) for n in (pad, pad + max(form.kernel))]
    made = F.conv3d(
        F.pad(three(x), around), composed(form, three(weight)), None, form.stride, 0, 1, form.groups
    )
    z, y, w = form.out_size
    torch.testing.assert_close(made[:, :, :z, :y, :w], wanted)


@pytest.mark.parametrize(("conv", "window"), DENSE.values(), ids=DENSE)
def test_or_a_convolution_of_means(conv: Conv, window: tuple[int, int, int]) -> None:
    x, weight, wanted = exact(conv, window)
    form = pooled_first(conv.form, window)
    around = [n for pad in reversed(conv.padding) for n in (pad, pad)]
    means = F.avg_pool3d(F.pad(three(x), around), window, 1)
    assert form.in_size == tuple(means.shape[2:]) and form.out_size == tuple(wanted.shape[2:])
    made = F.conv3d(means, three(weight), None, form.stride, 0, conv.dilation, conv.groups)
    z, y, w = form.out_size
    torch.testing.assert_close(made[:, :, :z, :y, :w], wanted)


def test_fewer_products() -> None:
    """Of a transposed convolution whose pool has its stride: as many taps as it has in a phase."""
    conv = Conv(32, 64, (96, 96), (3, 3), steps=2, pads=1, extra=1, transposed=True)
    form = mean_of(conv.form, (1, 2, 2))
    assert form is not None
    assert (form.kernel, form.stride, form.padding) == ((1, 2, 2), (1, 1, 1), (0, 0, 0))
    assert math.prod(form.out_size) * form.taps * 4 == 16 * 96 * 96


@pytest.mark.parametrize(
    ("conv", "window"),
    [
        (Conv(3, 4, (9, 9), (3, 3), steps=2), (1, 2, 2)),
        (Conv(3, 4, (9, 9), (3, 3), dilations=2), (1, 2, 2)),
        (Conv(3, 4, (9, 9), (3, 3), steps=2, transposed=True), (1, 3, 3)),
        (Conv(3, 4, (9, 9), (3, 3), steps=2, transposed=True), (1, 1, 2)),
        (Conv(3, 4, (9, 9), (1, 1), steps=2, pads=2, transposed=True), (1, 2, 2)),
        (Conv(3, 4, (9, 9), (3, 3)), (1, 1, 1)),
    ],
    ids=["strided", "dilated", "no multiple", "phases apart", "cut off", "no pool"],
)
def test_others_are_none(conv: Conv, window: tuple[int, int, int]) -> None:
    assert mean_of(conv.form, window) is None


def test_means_of_means_are_none() -> None:
    form = mean_of(replace(Conv(3, 4, (20, 20), (3, 3))).form, (1, 2, 2))
    assert form is not None and mean_of(form, (1, 2, 2)) is None


# ---- where it is made ------------------------------------------------------------------------


def planned(layer: nn.Module, pool: int, side: int, target: str, eager: str) -> Compiled:
    channels = int(layer.in_channels)  # type: ignore[arg-type]
    module = Written(lambda m, x: F.elu(F.avg_pool2d(m.c(x), pool)), c=layer)
    problem = problem_from_module(module, (torch.randn(32, channels, side, side),))
    return compile_problem(problem, target=target, accuracies=Everywhere(EAGER[eager]))


def goes_first(made: Compiled) -> bool:
    return any(POOL_FIRST in law for law in made.rewrites)


def test_the_faster_of_two_ways() -> None:
    """Packed weights of 6 x 6 taps are few enough for one product, not for three."""
    layer = nn.Conv2d(24, 48, 3)
    folded = planned(layer, 4, 127, "cuda", "rounded")
    (region,) = folded.planned.regions
    numbers = dict(region.why.numbers)
    assert region.why.code is Code.CONV_FOLDED and not goes_first(folded)
    assert float(str(numbers["ours"])) <= float(str(numbers["first"]))
    assert any("the pool is folded into the weights" in why for why in folded.refusals)
    (row,) = (row for row in folded.ledger if row.op == "avg_pool2d")
    assert "window 6 x 6, stride 4 x 4" in row.why and "if its input were pooled first" in row.why
    (kernel,) = (k for k in folded.kernels if isinstance(k, ConvKernel))
    constants = dict(kernel.tile.constants)
    assert [constants[f"kMean{axis}"] for axis in "DHW"] == [1, 4, 4]
    assert [constants[f"kOwnKernel{axis}"] for axis in "DHW"] == [1, 3, 3]
    assert goes_first(planned(layer, 4, 127, "cuda", "exact"))


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_without_generated_convolutions_the_input_is_averaged(target: str) -> None:
    assert goes_first(planned(nn.Conv2d(24, 48, 3), 3, 67, target, "rounded"))


@pytest.mark.parametrize("eager", EAGER)
def test_a_pool_undoes_the_stride(eager: str) -> None:
    layer = nn.ConvTranspose2d(32, 64, 3, stride=2, padding=1, output_padding=1)
    made = planned(layer, 2, 96, "cuda", eager)
    (region,) = made.planned.regions
    assert region.why.code is Code.CONV_MEAN
    assert [r.kind for r in made.planned.library] == ["contract", "rowwise"]
