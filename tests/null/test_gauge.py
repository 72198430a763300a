"""What is owed: how errors are told apart, which count, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from kernelwright import gauge
from kernelwright.accuracy import UNKNOWN, Accuracy
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.pattern import rewrite
from kernelwright.problem import Problem, problem_from_module
from kernelwright.rules import ALL_RULES

CPU = torch.device("cpu")


def test_what_is_owed() -> None:
    assert UNKNOWN.owed == "float32"
    assert Accuracy(2e-7).owed == "float32"
    assert Accuracy(2.7e-4).owed == "tf32"
    assert Accuracy(2.7e-4, fewest=16).owed == "tf32"
    assert str(Accuracy(2.7e-4, fewest=16)).endswith(
        "below a batch of 16 it is float32's, and the library runs"
    )
    assert str(Accuracy(2.7e-4)).startswith("eager's own error is 2.7e-04 here, so TF32's")
    assert "not known" in str(UNKNOWN)


def test_what_is_allowed() -> None:
    assert Accuracy(2e-7).allows(4e-7)
    assert not Accuracy(2e-7).allows(3e-4)
    assert Accuracy(3e-4).allows(3e-4)
    assert not Accuracy(3e-4).allows(None)
    assert not UNKNOWN.allows(3e-4)


def test_nothing_is_measured_without_a_gpu() -> None:
    problem = problem_from_module(nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 8, 8),))
    captured = capture(problem)
    assert gauge.measure(captured, expand(captured), problem) == {}


@pytest.mark.parametrize(
    ("target", "shapes", "settings"),
    [
        (
            "torch.ops.aten.conv2d.default",
            [(3, 4, 9, 9), (6, 2, 3, 3)],
            [(1, 1), (1, 1), (1, 1), 2],
        ),
        ("torch.ops.aten.conv3d.default", [(2, 3, 5, 5, 5), (4, 3, 3, 3, 3)], []),
        (
            "torch.ops.aten.conv_transpose2d.input",
            [(4, 6, 5, 5), (6, 3, 4, 4)],
            [(2, 2), (1, 1), (0, 0), 1, (1, 1)],
        ),
    ],
)
def test_errors_on_the_cpu_are_those_of_float32(
    target: str, shapes: list[tuple[int, ...]], settings: list[Any]
) -> None:
    for order in (None, gauge.CHANNELS_LAST[len(shapes[0])]):
        found = gauge.relative_error(target, shapes, settings, order, CPU)
        assert found is not None
        assert 1e-9 < found < 2e-6


class Pretended:
    """A device on which batches of fewer than 16 are computed in float32."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        monkeypatch.setattr(gauge, "relative_error", self.error)

    def error(self, target: str, shapes: Any, settings: Any, order: Any, device: Any) -> float:
        self.asked.append((target, *shapes, order))
        if order is not None:
            return 3e-4
        return 2e-7 if shapes[0][0] < 16 and shapes[1][1] < 16 else 3e-4

    def measure(self, module: nn.Module, *shape: int) -> list[Accuracy]:
        problem = problem_from_module(module.eval(), (torch.randn(shape),))
        captured = capture(problem)
        primitives = expand(rewrite(captured, ALL_RULES)[0])
        with self.monkeypatch.context() as there:
            there.setattr(torch.cuda, "is_available", lambda: True)
            found = gauge.measure(captured, primitives, cast("Problem", _OnGpu(problem)))
        return list(found.values())


class _OnGpu:
    """A problem as if it were on a GPU."""

    def __init__(self, problem: Problem) -> None:
        self.device, self.conv_tf32 = torch.device("cuda", 0), True
        self.batch = problem.batch


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pretended:
    return Pretended(monkeypatch, tmp_path)


def test_tf32_holds_from_a_batch_on(pretended: Pretended) -> None:
    few, many = nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3)
    assert pretended.measure(few, 32, 8, 9, 9) == [Accuracy(3e-4, 3e-4, fewest=16)]
    assert pretended.measure(few, 8, 8, 9, 9) == [Accuracy(2e-7, 3e-4)]
    assert pretended.measure(many, 32, 16, 9, 9) == [Accuracy(3e-4, 3e-4)]
    tried = {shape[0] for _, shape, _, _ in pretended.asked}
    assert tried == {1, 2, 5, 8, 16, 32}


def test_what_was_measured_is_kept(pretended: Pretended) -> None:
    first = pretended.measure(nn.Conv2d(8, 16, 3), 4, 8, 9, 9)
    count = len(pretended.asked)
    assert count == 6  # batches 1, 2 and 4 in two orders: the user's call is the plan's
    assert pretended.measure(nn.Conv2d(8, 16, 3), 4, 8, 9, 9) == first
    assert len(pretended.asked) == count


def test_what_cannot_be_kept_is_measured_again(pretended: Pretended, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pretended.monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    first = pretended.measure(nn.Conv2d(8, 16, 3), 4, 8, 9, 9)
    assert pretended.measure(nn.Conv2d(8, 16, 3), 4, 8, 9, 9) == first
    assert len(pretended.asked) == 12


def test_a_convolution_that_laws_have_made_owes_what_its_origin_did(pretended: Pretended) -> None:
    """The average pool goes in front of the convolution, whose shapes are other ones then."""
    module = nn.Sequential(nn.Conv2d(8, 16, 3), nn.AvgPool2d(2))
    (found,) = pretended.measure(module, 4, 8, 10, 10)
    assert found.owed == "float32"
    assert len(pretended.asked) == 6  # two shapes, in one order each
