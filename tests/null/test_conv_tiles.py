"""The configurations of generated convolutions: they fit, they cover the output, they say why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from convolved import LOOPS, Conv

from kernelwright.lower.conv import candidates, ranked, room, tiles
from kernelwright.lower.conv_choice import Needs
from kernelwright.lower.conv_shape import ConvConfig, Shape
from kernelwright.plan.walks import side_by_side
from kernelwright.targets.sm_90 import CONVOLVING

FORMS = {
    "plain": Conv(8, 64, (256, 256), (3, 3)),
    "deep": Conv(64, 128, (128, 128), (3, 3), loop="rounded"),
    "three": Conv(3, 32, (224, 224), (7, 7), steps=2, pads=3),
    "line": Conv(16, 40, (1000,), (5,)),
    "volume": Conv(16, 64, (16, 32, 32), (3, 3, 3)),
    "up": Conv(32, 64, (32, 32), (3, 3), steps=2, pads=1, extra=1, transposed=True),
    "up_volume": Conv(24, 48, (28, 28, 28), (5, 5, 5), steps=2, pads=2, transposed=True),
    "groups": Conv(64, 128, (56, 56), (3, 3), pads=1, groups=8),
    "pooled": Conv(16, 64, (62, 62), (3, 3), multiple=(1, 4, 6)),
    "together": Conv(16, 96, (30, 30), (3, 3), together=96),
    "tiny": Conv(4, 6, (7, 7), (3, 3)),
    "tiny_up": Conv(4, 6, (3, 3), (3, 3), steps=2, transposed=True),
    "tiny_line": Conv(4, 6, (9,), (3,)),
    "half": Conv(32, 64, (30, 30), (3, 3), loop="bfloat16"),
}


@pytest.mark.parametrize("name", FORMS)
def test_configurations_fit(name: str) -> None:
    form = FORMS[name]
    for config in _ranked(form)[:50]:
        constants = dict(config.constants)
        assert config.shared_bytes <= CONVOLVING.shared_bytes
        assert constants["kStages"] >= 2
        extents = (config.depth, config.height, config.width)
        assert all(n % m == 0 for n, m in zip(extents, form.multiple, strict=True))
        assert config.pitch >= math.prod(extents)
        assert config.channels >= form.together
        assert constants["kSplitC"] * math.prod(constants[f"kSplit{a}"] for a in "XYZ") == 2
        assert config.threads in (32, 128) and config.time(1) > 0


@pytest.mark.parametrize("name", FORMS)
def test_a_warpgroups_tile_is_whole_slices(name: str) -> None:
    for config in _ranked(FORMS[name])[:50]:
        constants = dict(config.constants)
        phases = (1, 1, 1)
        if constants["kTransposed"]:
            phases = tuple(constants[f"kStride{a}"] for a in "DHW")
        assert config.width == constants["kWide"] * phases[2]
        assert constants["kTall"] * phases[1] % config.height == 0
        assert constants["kDeep"] * phases[0] % config.depth == 0


def test_every_refusal_says_why() -> None:
    form = FORMS["volume"]
    found = list(candidates(form.made, LOOPS[form.loop], _needs(form)))
    refused = [c for c in found if c.shape is None]
    assert refused and all(c.refused and str(c.choice) for c in refused)
    assert any(c.shape is not None for c in found)


def test_a_stage_is_within_reach_of_its_offsets() -> None:
    """Channels of 2^24 elements: three chunks of eight, and no fourth."""
    form = Conv(64, 64, (4096, 4096), (3, 3))
    assert {dict(config.constants)["kChunks"] for config in _ranked(form)} == {1, 2, 3}
    larger = replace(form, size=(8192, 8192))
    assert not tiles(larger.made, LOOPS[larger.loop], _needs(larger))


@pytest.mark.parametrize("name", FORMS)
def test_larger_boxes_change_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fit beside the same stages, and no fewer bytes of the input are on their way."""
    form = FORMS[name]
    after = list(candidates(form.made, LOOPS[form.loop], _needs(form)))
    monkeypatch.setattr(Shape, "fed", property(lambda shape: shape))
    before = list(candidates(form.made, LOOPS[form.loop], _needs(form)))
    for small, large in zip(before, after, strict=True):
        shape, fed = small.shape, large.shape
        if shape is None or fed is None:
            assert shape is fed
            continue
        kept = [(repr(each.choice), each.slices, each.stages) for each in (shape, fed)]
        assert kept[0] == kept[1]
        assert fed.shared_bytes <= CONVOLVING.shared_bytes and fed.ahead >= 2
        on_their_way = [each.ahead * each.memory.piece for each in (shape, fed)]
        assert on_their_way[0] <= on_their_way[1]
        if fed.memory.boxes != shape.memory.boxes:
            assert fed.memory.boxes is not None and shape.memory.boxes is not None
            assert fed.memory.boxes.effort < shape.memory.boxes.effort
            assert fed.memory.piece <= 2 * shape.memory.piece


def test_boxes_cover_the_halo_with_as_few_rows_twice_as_can_be() -> None:
    """Five rows in boxes of at most three: three and three, of which one is the same."""
    form = Conv(8, 64, (96, 96), (2, 2))
    shapes = [c.shape for c in candidates(form.made, LOOPS[form.loop], _needs(form)) if c.shape]
    assert any(s.memory.halo[1] % s.memory.boxes.size[1] for s in shapes if s.memory.boxes)
    for shape in shapes:
        if (boxes := shape.memory.boxes) is None:
            continue
        (depth, height, _), (deep, tall, _) = shape.memory.halo, boxes.size
        parts = -(-depth // deep), -(-height // tall)
        assert boxes.count == math.prod(parts)
        assert deep * (parts[0] - 1) < depth and tall * (parts[1] - 1) < height
        assert deep * parts[0] - depth < parts[0] and tall * parts[1] - height < parts[1]
        assert deep == 1 or tall == height  # several planes are whole ones


def test_a_feeding_thread_loads_four_units_at_once() -> None:
    """Four rows of 128 places by 128 threads; a box of two rows was waited for twice as often."""
    constants = dict(_ranked(FORMS["deep"])[0].constants)
    assert (constants["kTall"], constants["kWide"]) == (2, 126)
    assert (constants["kBoxTall"], constants["kAhead"]) == (4, 2)


def test_of_each_box_there_is_the_fastest_tile() -> None:
    """An epilogue may refuse a box, and sees nothing else of a tile."""
    form = FORMS["plain"]
    every, found = _ranked(form), tiles(form.made, LOOPS[form.loop], _needs(form))
    best = [next(c for c in every if c.box == box) for box in dict.fromkeys(c.box for c in every)]
    assert list(found) == best and len(best) < len(every)


def test_the_largest_of_phases_counts_places() -> None:
    form = FORMS["up_volume"]
    pool = side_by_side((2, 2, 2), form.out_size)
    needs = Needs(48, (3, 3, 3), pool)
    constants = dict(tiles(form.made, LOOPS[form.loop], needs)[0].constants)
    assert [constants[f"kOut{a}"] for a in "DHW"] == [27, 27, 27]
    assert constants["kTileW"] % 3 == 0 and constants["kTileChannels"] >= 48


def test_channels_that_are_reduced_in_registers_make_places_rows() -> None:
    """They need no slice there."""
    form = Conv(8, 64, (128, 128), (3, 3))
    needs = Needs(64, (1, 1, 1), stores=False, operations=31)
    slices, across = (
        tiles(form.made, LOOPS["split"], replace(needs, across=n))[0] for n in (0, 32)
    )
    rows = [dict(config.constants)["kPixelsOnM"] for config in (slices, across)]
    assert rows == [0, 1] and across.time(64) < slices.time(64)


def test_reductions_in_registers_leave_room_for_themselves() -> None:
    """Three products of 96 channels side by side have 144 sums a thread."""
    form = Conv(8, 96, (128, 128), (3, 3))
    needs = Needs(96, (1, 1, 1), stores=False, across=14)
    refused = {c.refused for c in candidates(form.made, LOOPS["rounded"], needs)}
    assert "too many accumulators to be reduced beside one another" in refused


OVERLAPS = {
    "stem": Conv(
        *(3, 64, (224, 224), (7, 7)),
        steps=2,
        pads=3,
        **{"largest": (1, 3, 3), "apart": (1, 2, 2), "before": (0, 1, 1)},
    ),
    "odd": Conv(16, 64, (37, 45), (3, 3), largest=(1, 3, 3), apart=(1, 2, 2)),
    "by one": Conv(16, 64, (37, 45), (3, 3), largest=(1, 2, 2), apart=(1, 1, 1)),
    "wide": Conv(16, 64, (33, 50), (3, 3), largest=(1, 3, 6), apart=(1, 2, 4)),
    "line": Conv(16, 64, (1000,), (5,), largest=(1, 1, 3), apart=(1, 1, 2), before=(0, 0, 1)),
    "volume": Conv(
        *(16, 64, (9, 17, 15), (3, 3, 3)),
        **{"largest": (3, 3, 3), "apart": (2, 2, 2), "before": (1, 1, 1)},
    ),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_every_window_that_overlaps_is_whole_in_one_tile(name: str) -> None:
    """A warpgroup hands over windows that it has all places of, and none twice."""
    form = OVERLAPS[name]
    pool = form.pool
    assert pool is not None
    for config in ranked(form.made, LOOPS[form.loop], replace(_needs(form), pool=pool))[:50]:
        constants = dict(config.constants)
        held = [constants[name] for name in ("kDeep", "kTall", "kWide")]
        windows = [
            (places - overlap) // step
            for places, overlap, step in zip(held, pool.overlap, pool.step, strict=True)
        ]
        slices = (config.depth, config.height, config.width)
        assert all(n % s == 0 for n, s in zip(windows, slices, strict=True))
        assert windows[2] == config.width
        whole = zip(windows, pool.step, pool.overlap, strict=True)
        assert held == [n * step + overlap for n, step, overlap in whole]
        warpgroups = config.launch.tiles * 2 // constants["kSplitC"]
        assert warpgroups * math.prod(windows) >= math.prod(pool.count)


@pytest.mark.parametrize(
    "form",
    [
        Conv(16, 16, (37, 45), (3, 3), largest=(1, 3, 3), apart=(1, 2, 2)),
        Conv(16, 64, (37, 45), (3, 3), largest=(1, 5, 5), apart=(1, 3, 3)),
        Conv(16, 64, (37, 45), (3, 3), largest=(1, 13, 13), apart=(1, 1, 1)),
    ],
    ids=["places as rows", "every third column", "too wide"],
)
def test_windows_of_columns_that_no_warp_has(form: Conv) -> None:
    needs = replace(_needs(form), pool=form.pool)
    assert not tiles(form.made, LOOPS[form.loop], needs)
    refused = {c.refused for c in candidates(form.made, LOOPS[form.loop], needs)}
    assert "a warp does not have whole windows" in refused


def test_tiles_that_overlap_cost_what_they_compute_again() -> None:
    """Windows side by side leave three quarters of that."""
    form = OVERLAPS["stem"]
    beside = side_by_side((1, 2, 2), form.out_size)
    times = [
        tiles(form.made, LOOPS[form.loop], replace(_needs(form), pool=pool, stores=False))[0].time(
            64
        )
        for pool in (beside, form.pool)
    ]
    assert times[0] < 0.9 * times[1]


def test_room_is_that_of_the_packed_weights() -> None:
    form = FORMS["deep"]
    config = _ranked(form)[0]
    packed, scales = room(config)
    assert packed.shape == (config.packed_bytes,)
    least = form.cin * form.cout * 9 * 2 * LOOPS[form.loop].planes
    assert least <= config.packed_bytes <= 2 * least
    assert scales.shape == (config.scale_bytes,) and config.scale_bytes >= form.cout * 8


def test_few_input_channels_share_a_chunk() -> None:
    constants = dict(_ranked(FORMS["three"])[0].constants)
    assert constants["kPack"] == 2 and constants["kChunks"] == 1


def _needs(form: Conv) -> Needs:
    return Needs(form.together, form.multiple)


def _ranked(form: Conv) -> list[ConvConfig]:
    found = ranked(form.made, LOOPS[form.loop], _needs(form))
    assert found
    return found
