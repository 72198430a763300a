"""Generated convolutions against float64: every kind of window, tile, loop and orientation.

The kernel alone (convolved.py), at sizes that no tile divides; results and scratch memory are full
of NaN before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from convolved import Built, Conv, build
from torch import Tensor

from kernelwright.verify.compare import same_bits

DEVICE = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="convolutions need compute capability 9.0")

INF, NAN = math.inf, math.nan
EPS = torch.finfo(torch.float32).eps
# Of the sum of the terms' magnitudes; halves are rounded once more when they are stored.
BOUNDS = {"split": 8 * EPS, "rounded": 1.5e-3, "float16": 1e-3, "bfloat16": 8e-3}

# Windows that share a row and a column with the next one.
OVERLAP: dict[str, Any] = {"largest": (1, 3, 3), "apart": (1, 2, 2)}
DEEP_RING = (("kResident", 0), ("kWeightRing", 0))  # weights come with every stage
DENSE = {
    "plain": Conv(8, 64, (37, 45), (3, 3)),
    "padded": Conv(16, 64, (33, 30), (3, 3), pads=1),
    "deep": Conv(64, 128, (30, 34), (3, 3), pads=1),
    "deep_resident": Conv(64, 128, (30, 34), (3, 3), loop="rounded", where=(("kResident", 1),)),
    "deep_ring": Conv(64, 128, (30, 34), (3, 3), loop="rounded", where=DEEP_RING),
    "deep_own": Conv(64, 128, (30, 34), (3, 3), loop="rounded", where=(("kWeightRing", 2),)),
    "own_channels": Conv(
        *(40, 200, (30, 33), (3, 3)), loop="rounded", where=(("kWeightRing", 2), ("kRows", 8))
    ),
    "own_halves": Conv(64, 128, (30, 34), (3, 3), loop="bfloat16", where=(("kWeightRing", 2),)),
    "joined": Conv(
        *(64, 128, (21, 64), (3, 3)),
        loop="rounded",
        where=(("kAlongX", 1), ("kBlocksY", 2), ("kChannels", 64), ("kWeightRing", 2)),
    ),
    "odd_channels": Conv(13, 70, (29, 31), (3, 3), pads=1),
    "three": Conv(3, 32, (41, 43), (3, 3)),
    "three_rounded": Conv(3, 24, (41, 43), (3, 3), loop="rounded"),
    "one": Conv(1, 16, (41, 43), (5, 5), pads=2),
    "two": Conv(2, 20, (41, 43), (3, 4), dilations=2),
    "strided": Conv(16, 32, (45, 47), (3, 3), steps=2, pads=1),
    "strided_three": Conv(3, 64, (64, 61), (7, 7), steps=2, pads=3),
    "steps_of_three": Conv(8, 64, (45, 47), (4, 5), steps=3, pads=2, dilations=(1, 2)),
    "dilated": Conv(24, 48, (40, 36), (3, 3), dilations=3, pads=3),
    "pointwise": Conv(48, 96, (28, 28), (1, 1)),
    "small": Conv(32, 64, (7, 7), (3, 3), pads=1),
    "line": Conv(16, 64, (1000,), (5,), pads=2),
    "along": Conv(16, 64, (20, 300), (3, 3), where=(("kAlongX", 1),)),
    "along_pixels": Conv(16, 24, (20, 300), (3, 3), where=(("kAlongX", 1), ("kPixelsOnM", 1))),
    "along_narrow": Conv(
        *(64, 64, (56, 56), (3, 3)),
        pads=1,
        loop="rounded",
        where=(("kAlongX", 1), ("kTall", 3), ("kPixelsOnM", 0)),
    ),
    "line_strided": Conv(20, 33, (777,), (8,), steps=4),
    "volume": Conv(16, 64, (9, 17, 15), (3, 3, 3)),
    "volume_strided": Conv(8, 16, (11, 13, 19), (3, 3, 3), steps=2, pads=1),
    "volume_one": Conv(3, 16, (8, 16, 15), (3, 3, 3), pads=1, loop="rounded"),
    "wide_window": Conv(8, 24, (20, 22), (11, 9), pads=4),
    "volume_planes": Conv(
        *(16, 64, (9, 17, 15), (3, 3, 3)), where=(("kTileD", 1), ("kDeep", 2), ("kPixelsOnM", 0))
    ),
    "volume_planes_rounded": Conv(
        *(16, 64, (9, 17, 15), (3, 3, 3)),
        loop="rounded",
        where=(("kTileD", 1), ("kDeep", 2), ("kPixelsOnM", 0)),
    ),
    "volume_window": Conv(16, 40, (10, 12, 14), (3, 5, 5), pads=2, loop="rounded"),
    "halves": Conv(32, 64, (30, 31), (3, 3), pads=1, loop="float16"),
    "brain_halves": Conv(12, 40, (30, 31), (3, 3), steps=2, loop="bfloat16"),
    "together": Conv(16, 48, (30, 31), (3, 3), together=48),
    "together_high": Conv(16, 128, (30, 31), (3, 3), together=128, where=(("kPixelsOnM", 0),)),
    "multiples": Conv(16, 64, (31, 40), (3, 3), multiple=(1, 3, 6)),
    "pixels": Conv(32, 64, (31, 40), (3, 3), where=(("kPixelsOnM", 1),)),
    "weights": Conv(32, 40, (31, 40), (3, 3), where=(("kPixelsOnM", 0),)),
    "channel_split": Conv(16, 128, (31, 40), (3, 3), loop="rounded", where=(("kSplitC", 2),)),
    "windows": Conv(8, 64, (37, 53), (3, 3), largest=(1, 4, 4)),
    "windows_high": Conv(16, 128, (37, 53), (3, 3), pads=1, loop="rounded", largest=(1, 2, 2)),
    "windows_of_eight": Conv(16, 70, (33, 50), (3, 3), largest=(1, 3, 8)),
    "windows_down": Conv(24, 64, (33, 50), (3, 3), largest=(1, 3, 1)),
    "windows_along": Conv(8, 64, (20, 300), (3, 3), largest=(1, 2, 4), where=(("kAlongX", 1),)),
    "windows_together": Conv(16, 64, (30, 31), (3, 3), largest=(1, 2, 2), together=64),
    "windows_deep": Conv(16, 64, (9, 17, 15), (3, 3, 3), largest=(2, 2, 2)),
    "windows_halves": Conv(32, 64, (30, 31), (3, 3), pads=1, loop="float16", largest=(1, 2, 2)),
    "overlap": Conv(8, 64, (37, 53), (3, 3), **OVERLAP),
    "overlap_padded": Conv(8, 64, (37, 53), (3, 3), **OVERLAP, before=(0, 1, 1)),
    "overlap_even": Conv(8, 64, (38, 54), (3, 3), **OVERLAP, before=(0, 1, 1), loop="rounded"),
    "overlap_deep": Conv(64, 128, (30, 34), (3, 3), **OVERLAP, before=(0, 1, 1), loop="rounded"),
    "overlap_stem": Conv(3, 64, (64, 61), (7, 7), steps=2, pads=3, **OVERLAP, before=(0, 1, 1)),
    "overlap_odd_channels": Conv(13, 70, (29, 31), (3, 3), pads=1, **OVERLAP, before=(0, 1, 1)),
    "overlap_together": Conv(16, 64, (30, 31), (3, 3), **OVERLAP, before=(0, 1, 1), together=64),
    "overlap_down": Conv(
        *(24, 64, (33, 50), (3, 3)), largest=(1, 3, 1), apart=(1, 2, 1), before=(0, 1, 0)
    ),
    "overlap_across": Conv(
        *(8, 64, (33, 50), (3, 3)), largest=(1, 1, 3), apart=(1, 1, 2), before=(0, 0, 1)
    ),
    "overlap_by_one": Conv(
        *(8, 64, (33, 50), (3, 3)), largest=(1, 3, 3), apart=(1, 1, 1), before=(0, 1, 1)
    ),
    "overlap_of_two": Conv(8, 64, (33, 50), (3, 3), largest=(1, 2, 2), apart=(1, 1, 1)),
    "overlap_of_four": Conv(
        *(8, 64, (33, 50), (3, 3)), largest=(1, 4, 4), apart=(1, 1, 1), before=(0, 2, 2)
    ),
    "overlap_of_five": Conv(
        *(8, 64, (33, 50), (3, 3)), largest=(1, 5, 5), apart=(1, 1, 1), before=(0, 2, 2)
    ),
    "overlap_of_six": Conv(8, 64, (33, 50), (3, 3), largest=(1, 3, 6), apart=(1, 2, 4)),
    "overlap_of_nine": Conv(
        *(8, 64, (33, 50), (3, 3)), largest=(1, 1, 9), apart=(1, 1, 1), before=(0, 0, 4)
    ),
    "overlap_along": Conv(
        *(8, 64, (20, 300), (3, 3)),
        largest=(1, 1, 3),
        apart=(1, 1, 2),
        where=(("kAlongX", 1),),
    ),
    "overlap_line": Conv(16, 64, (1000,), (5,), largest=(1, 1, 3), apart=(1, 1, 2)),
    "overlap_volume": Conv(
        *(16, 64, (9, 17, 15), (3, 3, 3)), largest=(3, 3, 3), apart=(2, 2, 2), before=(1, 1, 1)
    ),
    "overlap_split": Conv(
        *(8, 64, (37, 53), (3, 3)), **OVERLAP, before=(0, 1, 1), where=(("kSplitX", 2),)
    ),
    "overlap_channels": Conv(
        *(16, 128, (31, 40), (3, 3)), **OVERLAP, loop="rounded", where=(("kSplitC", 2),)
    ),
    "overlap_halves": Conv(
        *(32, 64, (30, 31), (3, 3)), pads=1, loop="float16", **OVERLAP, before=(0, 1, 1)
    ),
    "beside_padded": Conv(
        *(8, 64, (37, 53), (3, 3)), largest=(1, 2, 2), apart=(1, 2, 2), before=(0, 1, 1)
    ),
    "depth_split": Conv(16, 64, (6, 20, 24), (3, 3, 3), where=(("kSplitZ", 2),)),
}
TRANSPOSED = {
    "up": Conv(32, 64, (14, 17), (3, 3), steps=2, pads=1, extra=1, transposed=True),
    "up_rounded": Conv(32, 48, (14, 17), (4, 4), steps=2, pads=1, transposed=True, loop="rounded"),
    "up_plain": Conv(16, 32, (20, 19), (3, 3), transposed=True, pads=1),
    "up_thin": Conv(24, 16, (11, 13), (2, 2), steps=3, transposed=True),
    "up_dilated": Conv(16, 24, (11, 13), (3, 3), steps=2, dilations=2, transposed=True),
    "up_volume": Conv(24, 48, (6, 7, 9), (5, 5, 5), steps=2, pads=2, transposed=True),
    "up_volume_rounded": Conv(
        *(16, 16, (6, 7, 9), (3, 3, 3)), steps=2, pads=1, extra=1, transposed=True, loop="rounded"
    ),
    "up_line": Conv(16, 40, (100,), (5,), steps=2, transposed=True),
    "up_pooled": Conv(24, 48, (9, 11), (3, 3), steps=2, pads=1, transposed=True, largest=(1, 2, 2)),
    "up_volume_pooled": Conv(
        *(24, 48, (7, 9, 9), (5, 5, 5)),
        steps=2,
        pads=2,
        transposed=True,
        largest=(2, 2, 2),
        together=48,
        multiple=(3, 3, 3),
    ),
    "up_rows": Conv(
        *(32, 64, (14, 57), (3, 3)),
        steps=2,
        pads=1,
        extra=1,
        transposed=True,
        where=(("kTileH", 1),),
    ),
    "up_rows_together": Conv(
        *(24, 48, (9, 60), (4, 4)),
        steps=2,
        pads=1,
        transposed=True,
        loop="rounded",
        together=48,
        where=(("kTileH", 1),),
    ),
    "up_volume_rows": Conv(
        *(16, 32, (6, 7, 70), (3, 3, 3)),
        steps=2,
        pads=1,
        transposed=True,
        where=(("kTileD", 1), ("kTileH", 1)),
    ),
    "up_volume_planes": Conv(
        *(16, 32, (6, 14, 19), (3, 3, 3)),
        steps=2,
        pads=1,
        transposed=True,
        where=(("kTileD", 1), ("kTall", 8)),
    ),
    "up_many": Conv(96, 64, (9, 9), (3, 3), steps=2, transposed=True, where=(("kChunks", 4),)),
}
GROUPED = {
    "groups": Conv(64, 128, (20, 21), (3, 3), pads=1, groups=4),
    "small_groups": Conv(32, 64, (20, 21), (3, 3), groups=8, loop="rounded"),
    "tiny_groups": Conv(24, 48, (20, 21), (3, 3), groups=12),
    "up_groups": Conv(32, 32, (12, 11), (3, 3), steps=2, groups=2, transposed=True),
}
# Means of results, of whose weights there are sums alone.
MEANS = {
    "means": Conv(8, 64, (37, 46), (3, 3), mean=(1, 2, 2)),
    "means_wide": Conv(24, 48, (41, 43), (3, 3), pads=1, mean=(1, 4, 4), loop="rounded"),
    "means_three": Conv(3, 32, (41, 43), (3, 3), pads=1, mean=(1, 2, 3)),
    "means_deep": Conv(64, 128, (30, 34), (3, 3), pads=1, mean=(1, 2, 2)),
    "means_line": Conv(16, 40, (1001,), (5,), mean=(1, 1, 4)),
    "means_volume": Conv(16, 32, (9, 17, 15), (3, 3, 3), mean=(2, 2, 2)),
    "means_groups": Conv(32, 64, (20, 21), (3, 3), pads=1, groups=8, mean=(1, 2, 2)),
    "means_up": Conv(
        *(32, 64, (14, 17), (3, 3)), steps=2, pads=1, extra=1, transposed=True, mean=(1, 2, 2)
    ),
    "means_up_twice": Conv(
        *(24, 48, (19, 22), (4, 4)), steps=2, pads=1, transposed=True, mean=(1, 4, 4)
    ),
    "means_up_volume": Conv(
        *(24, 48, (6, 9, 9), (3, 3, 3)),
        steps=2,
        pads=1,
        extra=1,
        transposed=True,
        mean=(2, 2, 2),
        loop="rounded",
    ),
    "means_up_groups": Conv(
        *(32, 32, (12, 11), (5, 3)), steps=2, groups=2, transposed=True, mean=(1, 2, 2)
    ),
}
ALL_OF_A_CHANNEL = {
    "moments": Conv(8, 64, (37, 45), (3, 3), program="Moments"),
    "moments_even": Conv(8, 64, (34, 34), (3, 3), program="Moments", where=(("kTall", 8),)),
    "moments_stored": Conv(8, 70, (37, 45), (3, 3), program="StoredMoments"),
    "moments_high": Conv(32, 128, (31, 40), (3, 3), loop="rounded", program="StoredMoments"),
    "moments_along": Conv(16, 64, (20, 300), (3, 3), program="Moments", where=(("kAlongX", 1),)),
    "moments_places": Conv(3, 24, (9, 21, 34), (3, 3, 3), program="Moments"),
    "moments_few": Conv(4, 4, (9, 7), (3, 3), program="StoredMoments"),
    "moments_odd": Conv(3, 6, (41,), (5,), steps=2, program="Moments"),
    "moments_places_stored": Conv(
        10, 40, (31, 43), (3, 3), program="StoredMoments", where=(("kPixelsOnM", 1),)
    ),
    "moments_places_along": Conv(
        16, 24, (20, 300), (3, 3), program="StoredMoments", where=(("kAlongX", 1),)
    ),
    "moments_line": Conv(16, 64, (1000,), (5,), pads=2, program="Moments", loop="rounded"),
    "moments_planes": Conv(
        *(16, 64, (9, 17, 15), (3, 3, 3)),
        program="Moments",
        where=(("kTileD", 1), ("kDeep", 2), ("kPixelsOnM", 0)),
    ),
    "moments_slices": Conv(
        *(16, 32, (24, 80), (3, 3)),
        pads=1,
        program="Moments",
        where=(("kPixelsOnM", 1), ("kAlongX", 0), ("kTileH", 4), ("kTall", 8)),
    ),
    "moments_together": Conv(16, 48, (30, 31), (3, 3), program="Moments", together=48),
    "moments_groups": Conv(64, 128, (20, 21), (3, 3), program="Moments", groups=4),
    "moments_halves": Conv(32, 64, (30, 31), (3, 3), program="StoredMoments", loop="float16"),
}
PLACES = (("kPixelsOnM", 1),)
ALL_OF_A_PLACE = {
    name: replace(conv, program="LogSumExp", where=(*PLACES, *conv.where))
    for name, conv in {
        "across": Conv(8, 64, (37, 45), (3, 3)),
        "across_odd": Conv(13, 44, (29, 31), (3, 3), pads=1),
        "across_few": Conv(3, 6, (41,), (5,), steps=2),
        "across_high": Conv(64, 128, (30, 34), (3, 3), loop="rounded"),
        "across_along": Conv(16, 24, (20, 300), (3, 3), where=(("kAlongX", 1),)),
        "across_slices": Conv(16, 96, (24, 80), (3, 3), pads=1, where=(("kAlongX", 0),)),
        "across_planes": Conv(3, 24, (9, 21, 34), (3, 3, 3), where=(("kDeep", 2),)),
        "across_up": Conv(16, 32, (20, 19), (3, 3), transposed=True, pads=1),
        "across_groups": Conv(32, 64, (20, 21), (3, 3), groups=8, loop="rounded"),
        "across_means": Conv(16, 24, (20, 30), (3, 3), pads=1, mean=(1, 2, 2)),
        "across_halves": Conv(32, 64, (30, 31), (3, 3), loop="float16"),
    }.items()
}
KINDS = DENSE | TRANSPOSED | GROUPED | MEANS
# Rows that are multiples of 16 bytes come in boxes; what each thread copies for itself are others.
BOXED = {
    f"{name}_boxed": replace(conv, size=(*conv.size[:-1], -(-conv.size[-1] // 4) * 4))
    for name, conv in KINDS.items()
    if conv.dtype == torch.float32 and conv.size[-1] % 4
}
ALL = KINDS | BOXED | ALL_OF_A_CHANNEL | ALL_OF_A_PLACE


def both(*names: str) -> list[str]:
    """These, and those of them in boxes."""
    return [*names, *(boxed for name in names if (boxed := f"{name}_boxed") in BOXED)]


ACCURATE = both("plain", "deep", "strided", "volume", "up", "up_volume", "means", "means_up")
FOR_BATCHES = both("plain", "deep", "deep_resident", "up", "groups")
POOLED = ("windows", "overlap_padded", "overlap_deep", "means", "means_up")
FOR_SCALES = both("plain", "deep", "three", "up", "deep_resident", *POOLED, "odd_channels")
FOR_MAGNITUDES = both("plain", "deep", "deep_resident", "up", *POOLED)
FOR_SPECIALS = both("plain", "deep", "deep_resident", "up", "together", *POOLED, "odd_channels")
FOR_BITS = both("deep", "deep_resident", "up_volume", *POOLED)


@pytest.fixture(scope="module")
def convs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    built = build(ALL.values(), tmp_path_factory.mktemp("convs"))
    return {name: built[conv] for name, conv in ALL.items()}


def operands(conv: Conv, batch: int = 3, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(len(str(conv)))
    x = torch.randn(batch, conv.cin, *conv.size, device=DEVICE) * scale
    weight = torch.randn(conv.weight_shape(), device=DEVICE) / math.sqrt(conv.cin)
    return x.to(conv.dtype), weight.to(conv.dtype)


def check(built: Built, x: Tensor, weight: Tensor) -> float:
    """Every element within the loop's bound; returns the relative rms error."""
    conv = built.conv
    out = built(x, weight).double()
    wanted = conv.reference(x.double(), weight.double())
    most = conv.reference(x.double().abs(), weight.double().abs())  # at least that of the largest
    assert out.shape == wanted.shape
    error = (out - wanted).abs()
    wrong = ~(error <= BOUNDS[conv.loop] * most)
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}, {wrong.nonzero()[:3].tolist()}"
    return float(error.norm() / wanted.norm())


@pytest.mark.parametrize("name", KINDS | BOXED)
def test_values(convs: dict[str, Built], name: str) -> None:
    check(convs[name], *operands(convs[name].conv))


@pytest.mark.parametrize("name", ACCURATE)
def test_as_accurate_as_float32(convs: dict[str, Built], name: str) -> None:
    conv = convs[name].conv
    x, weight = operands(conv)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        eager = conv.reference(x, weight).double()
    wanted = conv.reference(x.double(), weight.double())
    own = float((eager - wanted).norm() / wanted.norm())
    assert check(convs[name], x, weight) <= 2 * own + 2e-7


@pytest.mark.parametrize("name", FOR_BATCHES)
@pytest.mark.parametrize("batch", [1, 2, 40])
def test_batches(convs: dict[str, Built], name: str, batch: int) -> None:
    check(convs[name], *operands(convs[name].conv, batch))


@pytest.mark.parametrize("name", FOR_SCALES)
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 3e4, 1e15])
def test_scales(convs: dict[str, Built], name: str, scale: float) -> None:
    """A sample of another magnitude changes the scale on the way."""
    x, weight = operands(convs[name].conv, scale=scale)
    check(convs[name], x, weight)
    x[1:2] *= 1e5
    check(convs[name], x, weight)


@pytest.mark.parametrize("name", FOR_MAGNITUDES)
def test_magnitudes_within_a_tile(convs: dict[str, Built], name: str) -> None:
    """Channels far smaller than the others still give what float32 gives."""
    x, weight = operands(convs[name].conv)
    x[:, ::2] *= 1e-9
    weight = weight.clone()
    inputs = weight if convs[name].conv.transposed else weight.transpose(0, 1)
    inputs[1::2] = 0  # only the small ones count
    check(convs[name], x, weight)


@pytest.mark.parametrize("name", FOR_SPECIALS)
@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e30])
def test_non_finite(convs: dict[str, Built], name: str, value: float) -> None:
    """They appear where eager puts them, and nowhere else."""
    conv = convs[name].conv
    x, weight = operands(conv)
    x[1, 3].view(-1)[5] = value
    out = convs[name](x, weight).double()
    wanted = conv.reference(x.double(), weight.double())
    special = ~wanted.isfinite()
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out[special].nan_to_num(), wanted[special].nan_to_num())
    most = conv.reference(x.double().abs(), weight.double().abs())[~special]
    assert ((out - wanted)[~special].abs() <= BOUNDS[conv.loop] * most).all()


@pytest.mark.parametrize("name", both("plain", "up", "means", "means_up"))
@pytest.mark.parametrize("value", [INF, NAN, 1e30])
def test_non_finite_weights(convs: dict[str, Built], name: str, value: float) -> None:
    """One alone, and one of each sign for the same channel: no sum of them may be seen."""
    conv = convs[name].conv
    x, weight = operands(conv)
    weight[0, 3].view(-1)[4] = value
    weight[1, 5].view(-1)[:2] = torch.tensor([value, -value], device=DEVICE)
    out = convs[name](x, weight).double()
    wanted = conv.reference(x.double(), weight.double())
    special = ~wanted.isfinite()
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out[special].nan_to_num(), wanted[special].nan_to_num())


@pytest.mark.parametrize("name", FOR_BITS)
def test_equal_bits(convs: dict[str, Built], name: str) -> None:
    x, weight = operands(convs[name].conv, 8)
    first = convs[name](x, weight)
    for _ in range(100):
        assert same_bits(convs[name](x, weight), first)


def moments(built: Built) -> tuple[Tensor, Tensor]:
    """The sum of every channel and its squares around the mean, put together from all slices."""
    conv, config = built.conv, built.conv.config
    tile = config.depth, config.height, config.width
    counts = torch.ones(1, dtype=torch.float64)
    for size, extent in zip(conv.out_size, tile, strict=True):
        along = [min(extent, size - at) for at in range(0, size, extent)]
        counts = (counts[:, None] * torch.tensor(along, dtype=torch.float64)).flatten()
    counts = counts.to(DEVICE)
    sums, squares = built.moments.double()
    mean = sums.sum(-1) / counts.sum()
    apart = sums / counts - mean[..., None]
    return sums.sum(-1), (squares + counts * apart.square()).sum(-1)


def check_moments(built: Built, x: Tensor, weight: Tensor, shift: float) -> None:
    conv = built.conv
    bias = torch.randn(conv.cout, device=DEVICE) + shift
    out = built(x, weight, bias)
    wanted = conv.reference(x.double(), weight.double()).flatten(2)
    most = conv.reference(x.double().abs(), weight.double().abs()).flatten(2)
    if conv.program == "StoredMoments":
        error = (out.double().flatten(2) - wanted).abs()
        assert (error <= BOUNDS[conv.loop] * most).logical_or(wanted.isnan()).all()
    wanted = wanted + bias.double()[:, None]
    total = wanted.sum(-1)
    around = (wanted - wanted.mean(-1, keepdim=True)).square().sum(-1)
    sums, squares = moments(built)
    assert torch.equal(sums.isnan(), total.isnan())
    assert torch.equal(squares.isnan(), total.isnan())
    known = ~total.isnan()
    bound = BOUNDS[conv.loop] * most.sum(-1) + 4 * EPS * wanted.abs().sum(-1)
    assert ((sums - total).abs() <= bound)[known].all()
    assert ((squares - around).abs() <= max(1e-3, 4 * BOUNDS[conv.loop]) * around)[known].all()


@pytest.mark.parametrize("name", ALL_OF_A_CHANNEL)
@pytest.mark.parametrize("shift", [0.0, 500.0])
def test_moments_of_channels(convs: dict[str, Built], name: str, shift: float) -> None:
    """What is reduced in registers; squares stay right far from zero."""
    check_moments(convs[name], *operands(convs[name].conv), shift)


@pytest.mark.parametrize("name", ALL_OF_A_CHANNEL)
def test_moments_of_doubtful_results(convs: dict[str, Built], name: str) -> None:
    """Tiles with results in doubt go another way."""
    x, weight = operands(convs[name].conv)
    x[0, ::2] *= 1e-6
    x[2, 1].view(-1)[7] = NAN
    check_moments(convs[name], x, weight, 0.0)


@pytest.mark.parametrize("name", ALL_OF_A_CHANNEL)
def test_equal_moments(convs: dict[str, Built], name: str) -> None:
    x, weight = operands(convs[name].conv, 8)
    bias = torch.zeros(convs[name].conv.cout, device=DEVICE)
    convs[name](x, weight, bias)
    first = convs[name].moments.clone()
    for _ in range(100):
        convs[name](x, weight, bias)
        assert same_bits(convs[name].moments, first)


def check_places(built: Built, x: Tensor, weight: Tensor) -> None:
    conv = built.conv
    bias = torch.randn(conv.cout, device=DEVICE)
    exact = conv.reference(x.double(), weight.double()).flatten(2)
    wanted = torch.logsumexp(exact + bias.double()[:, None], 1)
    most = conv.reference(x.double().abs(), weight.double().abs()).flatten(2).amax(1)
    out = built(x, weight, bias).flatten()
    found, behind = out[: wanted.numel()].view_as(wanted).double(), out[wanted.numel() :]
    assert torch.equal(found.isnan(), wanted.isnan()) and behind.isnan().all()
    stored = torch.finfo(conv.dtype).eps
    bound = BOUNDS[conv.loop] * most + 4 * stored * (1 + wanted.abs())
    assert ((found - wanted).abs() <= bound)[~wanted.isnan()].all()


@pytest.mark.parametrize("name", ALL_OF_A_PLACE)
def test_all_channels_of_places(convs: dict[str, Built], name: str) -> None:
    check_places(convs[name], *operands(convs[name].conv))


@pytest.mark.parametrize("name", ALL_OF_A_PLACE)
def test_all_channels_of_doubtful_places(convs: dict[str, Built], name: str) -> None:
    """Tiles with results in doubt go through slices."""
    x, weight = operands(convs[name].conv)
    x[0, ::2] *= 1e-6
    x[2, 1].view(-1)[7] = NAN
    check_places(convs[name], x, weight)


@pytest.mark.parametrize("name", ["deep", "deep_boxed"])
def test_captured_in_a_graph(convs: dict[str, Built], name: str) -> None:
    built = convs[name]
    x, weight = operands(built.conv)
    out = built(x, weight)
    wanted = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        built.repeat()
    out.fill_(NAN)
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(out, wanted)
