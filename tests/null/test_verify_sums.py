"""Errors summed up block by block, in threads, are those of the whole, slice by slice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernelwright.verify import sums
from kernelwright.verify.compare import measure
from kernelwright.verify.judge import Trial, trial_of
from kernelwright.verify.sums import tiles

SHAPES = [(), (1,), (50,), (7, 9), (40, 1), (4, 5, 6), (1, 3, 8), (3, 4, 5, 6), (2, 3, 1, 4, 5)]
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that even small outputs have several, for several threads."""
    monkeypatch.setattr(tiles, "__defaults__", (12,))
    monkeypatch.setattr(sums, "INNER", 4)
    monkeypatch.setattr(sums, "EACH", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, special: bool) -> list[Tensor]:
    torch.manual_seed(sum(shape))
    exact = torch.randn(shape, dtype=torch.float64)
    ours, eager = ((exact + 1e-3 * torch.randn(shape).double()).to(dtype) for _ in range(2))
    if special:
        for x, value, place in (
            (ours, NAN, 0),
            (eager, INF, -1),
            (exact, -INF, exact.numel() // 2),
        ):
            x.view(-1)[place] = value
    return [ours, eager, exact]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_figures_are_those_of_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, special: bool
) -> None:
    ours, eager, exact = drawn(shape, dtype, special)
    figures = measure(ours, eager, exact, by_group=True)
    kept = ours.isfinite() & eager.isfinite() & exact.isfinite()
    errors = [x.where(kept, 0.0) for x in (ours - exact, eager - exact, exact)]
    assert figures.count == int(kept.sum())
    squares = figures.candidate_squares, figures.eager_squares, figures.reference_squares
    assert squares == pytest.approx([float(x.square().sum()) for x in errors], rel=1e-12)
    maxima = [figures.candidate_max, figures.eager_max, figures.reference_max]
    assert maxima == [float(x.abs().max()) for x in errors]
    assert [groups.dims for groups in figures.groups] == kinds(shape)
    for groups in figures.groups:
        ours, eager, exact, counted = (by_slice(x, groups.dims) for x in (*errors, kept.double()))
        assert torch.equal(groups.count, counted.sum(1))
        torch.testing.assert_close(groups.reference_squares, exact.square().sum(1))
        for rms, x in ((groups.candidate_rms, ours), (groups.eager_rms, eager)):
            mean = x.square().sum(1) / counted.sum(1).clamp(min=1)
            torch.testing.assert_close(rms, mean.sqrt())
        for found, x in zip(
            (groups.candidate_max, groups.eager_max, groups.reference_max),
            (ours, eager, exact),
            strict=True,
        ):
            assert torch.equal(found, x.abs().amax(1))


def kinds(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    single: list[tuple[int, ...]] = [(dim,) for dim in range(len(shape)) if shape[dim] > 1]
    return [*single, (0, 1)] if len(shape) > 2 and min(shape[:2]) > 1 else single


def by_slice(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """One row for each slice."""
    others = [dim for dim in range(x.ndim) if dim not in dims]
    rows = x.permute(*dims, *others).reshape(-1, *(x.shape[dim] for dim in others))
    return rows.reshape(len(rows), -1)


@pytest.mark.usefixtures("small_blocks")
def test_slices_that_are_too_many_together_are_summed_up_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the places of the first two dimensions, and of the last two, are more than MOST."""
    ours, eager, exact = drawn((5, 6, 4, 7), torch.float32, special=True)
    whole = {x.dims: x for x in measure(ours, eager, exact, by_group=True).groups}
    monkeypatch.setattr(sums, "MOST", 10)
    parts = measure(ours, eager, exact, by_group=True).groups
    assert [x.dims for x in parts] == [(0,), (1,), (2,), (3,)]
    for groups in parts:
        torch.testing.assert_close(vars(groups), vars(whole[groups.dims]))


def test_the_smallest_errors_of_float64_count() -> None:
    """Their squares are 0."""
    exact = torch.full((4, 8), 2e-310, dtype=torch.float64)
    assert measure(exact * 2, exact, exact, by_group=True).worst.ratio > 1
    exact = torch.full((4, 8), 2e-42, dtype=torch.float64)
    eager = exact.float()
    assert measure(eager * 0, eager, exact, by_group=True).worst.ratio > 1


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [*SHAPES, (0,), (3, 0), (0, 4, 5), (4, 2, 0, 3)])
def test_tiles_cover_every_element_once(shape: tuple[int, ...]) -> None:
    seen = torch.zeros(shape)
    for place in tiles(shape):
        seen[place] += 1
    assert bool((seen == 1).all())
    assert measure(seen, seen, seen.double(), by_group=True).count == seen.numel()


def test_threads_are_what_they_were() -> None:
    before = torch.get_num_threads()
    x = torch.zeros(64, 1 << 14)
    measure(x, x, x.double(), by_group=True)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_must_be_where_it_is_elsewhere(value: float) -> None:
    exact = torch.zeros(300, 3, dtype=torch.float64)
    ours, eager = exact.float(), exact.float()
    ours[200, 1] = value
    wrong = trial_of("these", ours, eager, exact)
    assert not isinstance(wrong, Trial) and "(200, 1)" in wrong.detail
    eager[200, 1] = value
    assert isinstance(trial_of("these", ours, eager, exact), Trial)
