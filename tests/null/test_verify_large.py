"""Batches beyond what an int counts, another device, and slices: by small numbers on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from museum.models import BATCH_NORM, LINEAR, forward
from museum.wrong import RIGHT
from verifying import subject

from kernelwright.verify.certificate import Finding
from kernelwright.verify.checks import execution, large
from kernelwright.verify.compare import measure
from kernelwright.verify.sums import blocks

WRAPPED = "y = super().forward(x).clone()\ny[500:] = y[: max(0, len(y) - 500)]\nreturn y"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an int could count to 2^14."""
    monkeypatch.setattr(large, "ELEMENTS", 1 << 14)


def _huge(folder: Path, model: str, candidate: str) -> Finding:
    loaded = subject(folder, model, candidate)
    try:
        return large.huge(loaded)
    finally:
        loaded.close()


def test_rows_of_a_huge_batch_are_right(few: None, tmp_path: Path) -> None:
    finding = _huge(tmp_path, LINEAR, forward(RIGHT))
    assert finding.passed, finding
    assert "256 of 1061 rows" in finding.detail


def test_rows_at_a_wrapped_index_are_found(few: None, tmp_path: Path) -> None:
    assert _huge(tmp_path, LINEAR, forward(WRAPPED)).passed is False


def test_rows_that_depend_on_each_other_are_not_judged(few: None, tmp_path: Path) -> None:
    finding = _huge(tmp_path, BATCH_NORM, forward(RIGHT, BATCH_NORM))
    assert finding.passed is None and "depend on each other" in finding.detail


def test_memory_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "available_memory", lambda: 1 << 30)
    finding = _huge(tmp_path, LINEAR, forward(RIGHT))
    assert finding.passed is None and "GB of memory, of 1 free" in finding.detail


@pytest.mark.parametrize("right", [True, False])
def test_a_copy_on_a_device_has_weights_of_its_own(right: bool, tmp_path: Path) -> None:
    """Here the other device is the same; what is copied is not."""
    wrong = forward(
        "y = super().forward(x)\nself.n = getattr(self, 'n', 0) + 1\nreturn y * (self.n != 2)"
    )
    loaded = subject(tmp_path, LINEAR, forward(RIGHT) if right else wrong)
    try:
        assert execution.on_device(loaded, "cpu").passed is right
        assert execution.on_the_second_device(loaded).passed is None
    finally:
        loaded.close()


def _figures(wrong: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    figures = measure(exact.float() + wrong, exact.float(), exact, by_group=True)
    assert figures.worst_group is not None
    return figures.worst.ratio, figures.worst_group.ratio


@pytest.mark.parametrize("shape", [(6, 20), (4, 6, 5), (3, 20, 4, 4), (40,)])
def test_an_error_in_a_small_slice_is_seen_there(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    exact = torch.randn(shape, dtype=torch.float64)
    scale = torch.ones(shape[-1], dtype=torch.float64)
    scale[-1] = 1e-9
    exact *= scale
    error = torch.zeros(shape)
    assert max(_figures(error, exact)) <= 1
    error[..., -1] = 1e-9
    whole, slices = _figures(error, exact)
    assert whole <= 1 < slices


@pytest.mark.parametrize("seed", range(20))
def test_one_channels_luck_is_not_the_measure_of_its_samples(seed: int) -> None:
    """A channel's rounded weights are off by as much in every sample, all of which are as large."""
    torch.manual_seed(seed)
    sizes = torch.linspace(1.0, 2.0, 64, dtype=torch.float64).view(64, 1, 1)
    exact = sizes + 1e-3 * torch.randn(32, 64, 4, 4, dtype=torch.float64)
    ours, eager = (exact.float() + 1e-4 * torch.randn(64, 1, 1) for _ in range(2))
    right = measure(ours, eager, exact, by_group=True).worst_group
    assert right is not None and right.ratio <= 1.0
    ours[5, 9] += 2e-3
    wrong = measure(ours, eager, exact, by_group=True).worst_group
    assert wrong is not None and wrong.ratio > 1.0
    assert set(wrong.places) <= {(0, 5), (1, 9)}


def test_the_slice_is_named() -> None:
    exact = torch.ones(6, 8, 5, dtype=torch.float64)
    ours = exact.float()
    ours[4, 3, 2] = 1.1
    worst = measure(ours, exact.float(), exact, by_group=True).worst_group
    assert worst is not None and set(worst.places) <= {(0, 4), (1, 3), (2, 2)}


@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (4, 5, 6), (1, 1, 50), (0, 3)])
def test_blocks_cover_every_element_once(shape: tuple[int, ...]) -> None:
    seen = torch.zeros(shape)
    for place in blocks(shape, 8):
        assert seen[place].numel() <= 8
        seen[place] += 1
    assert bool((seen == 1).all())
