"""Few long rows: all of the GPU shares them, with memory for what its parts leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from written import Written

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.problem import problem_from_module

BLOCKS = 264  # of 1024 threads that run at once on an H200
ONE_NUMBER: dict[str, Callable[..., Any]] = {
    "sum": lambda self, x: x.sum(),
    "mean of squares": lambda self, x: (x * x).mean(),
    "variance": lambda self, x: x.var(),
    "softmax": lambda self, x: torch.softmax(x, 0),
}


def compiled_for(
    function: Callable[..., Any], x: Tensor, target: str = "cuda", **parts: Any
) -> Compiled:
    module: nn.Module = Written(function, **parts)
    return compile_problem(problem_from_module(module, (x,)), target=target)


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_a_vector_is_shared_by_all_blocks(name: str) -> None:
    compiled = compiled_for(ONE_NUMBER[name], torch.randn(64))
    (kernel,) = compiled.kernels
    assert kernel.config.shape == "spread"
    (room,) = kernel.room
    floats = 2 if name == "variance" else 1  # the sum behind its mean is a double
    assert room.shape == (1, len(kernel.program.stages), floats * BLOCKS)
    fused = compiled.source.split("def _kw_fused", 1)[1]
    assert f"sums = _kw_empty((1, {len(kernel.program.stages)}, {floats * BLOCKS})" in fused
    assert f'_kw_launch("{kernel.name}", device, [sums, x, ' in fused
    assert "static_cast<float*>(tensors[0]), on);" in compiled.source
    assert "static_cast<const float*>(tensors[1])," in compiled.source


def test_columns_of_a_high_matrix_are_shared_too() -> None:
    def statistics(self: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x.flatten(0, 1), None, None, training=True)

    compiled = compiled_for(statistics, torch.randn(64, 100, 48))
    (kernel,) = compiled.kernels
    constants = dict(kernel.config.constants)
    assert kernel.config.shape == "spread_strided" and constants["kParts"] == BLOCKS // 2
    (room,) = kernel.room
    assert room.shape == (48, 2, BLOCKS)  # of floats; a total is a double


def test_columns_of_a_wide_one_are_not() -> None:
    compiled = compiled_for(lambda self, x: x.sum(0), torch.randn(64, 4096))
    assert [k.config.shape for k in compiled.kernels] == ["strided"]


def test_rows_of_a_batch_are_not() -> None:
    compiled = compiled_for(lambda self, x: torch.softmax(x, 1), torch.randn(64, 100_000))
    assert [k.config.shape for k in compiled.kernels] == ["streaming"]


def test_short_rows_are_not() -> None:
    weight = nn.Parameter(torch.randn(4, 100_000))
    compiled = compiled_for(lambda self, x: x + self.w.amax(1), torch.randn(64, 4), w=weight)
    assert "streaming" in {k.config.shape for k in compiled.kernels}


def test_the_same_on_a_machine_without_clusters() -> None:
    compiled = compiled_for(lambda self, x: x.sum(), torch.randn(64), target="sm_80")
    (kernel,) = compiled.kernels
    assert dict(kernel.config.constants)["kParts"] == 216


@pytest.mark.parametrize(
    ("function", "joins"),
    [
        (lambda self, x: x.sum(0) / x.amax(0) + x.amin(0), (False, True, True)),
        (lambda self, x: torch.softmax(x, 0), (False, False)),
        (lambda self, x: x.var(0) + x.amin(0), (False, False, True)),
        (lambda self, x: x.amax(0) * x.std(0), (False, True, False)),
    ],
)
def test_stages_that_need_nothing_of_each_other_share_a_reading(
    function: Callable[..., Any], joins: tuple[bool, ...]
) -> None:
    compiled = compiled_for(function, torch.randn(5000, 4096))
    (kernel,) = compiled.kernels
    assert kernel.program.same_reading == joins
    written = ", ".join(str(joined).lower() for joined in joins)
    assert (f"kSameReading[] = {{{written}}};" in compiled.source) == any(joins)
