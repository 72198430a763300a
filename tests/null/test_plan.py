"""The planner: what shares a kernel, what does not, and that every refusal says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from written import Written, planned, refusal_codes

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, Region
from kernelwright.plan.reasons import Code
from kernelwright.problem import load_problem


def ops(region: Region, compiled: Compiled) -> set[str]:
    nodes = [compiled.planned.graph[n] for n in region.nodes]
    return {n.origin.op for n in nodes if n.op in ("map", "reduce")}


def kinds(compiled: Compiled) -> list[str]:
    """Of the steps as they were planned, before products took their seats (test_seats.py)."""
    return [r.kind for r in compiled.planned.library]


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def founding(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Compiled]:
    folder = tmp_path_factory.mktemp("examples")
    paths = [checking.reduced_example(p, folder) for p in checking.EXAMPLES]
    return {
        p.stem: compile_problem(load_problem(p, "cpu"), target=request.param, policy=ALWAYS)
        for p in paths
    }


def test_min_bias_is_one_kernel_and_a_small_one(founding: dict[str, Compiled]) -> None:
    compiled = founding["gemm_groupnorm_min_bias"]
    assert kinds(compiled) == ["contract", "rowwise", "rowwise"]
    _, tail, finish = compiled.planned.library
    assert ops(tail, compiled) == {"linear", "group_norm", "min"}
    assert ops(finish, compiled) == {"add"}
    assert tail.outputs[0].shape[1:] == (1,)
    assert [str(d) for d in finish.outputs[0].shape] == ["1", "256", "batch", "1"]
    assert refusal_codes(compiled) == [Code.BROADCASTS]


def test_hardtanh_mish_is_one_kernel(founding: dict[str, Compiled]) -> None:
    compiled = founding["gemm_bias_hardtanh_mish_groupnorm"]
    assert kinds(compiled) == ["contract", "rowwise"]
    tail = compiled.planned.library[1]
    assert {"hardtanh", "mish", "group_norm"} <= ops(tail, compiled)
    assert tail.program is not None and not tail.program.segmented
    assert not compiled.refusals


def test_leaky_relu_sum_is_one_kernel(founding: dict[str, Compiled]) -> None:
    compiled = founding["matmul_groupnorm_leakyrelu_sum"]
    assert kinds(compiled) == ["contract", "rowwise"]
    assert {"group_norm", "leaky_relu"} <= ops(compiled.planned.library[1], compiled)


def test_every_refusal_has_a_place_and_a_reason() -> None:
    paths = [p for p in checking.MODELS if p.stem in ("sort_diamond", "row_softmax_column_max")]
    for path in paths:
        compiled = compile_problem(load_problem(path, "cpu"), policy=ALWAYS)
        assert compiled.refusals
        for refusal in compiled.planned.refusals:
            assert refusal.place.startswith(path.name)
            assert refusal.op in str(refusal.why)
            assert "{" not in str(refusal.why)


def test_a_diamond_through_an_opaque_call_is_no_cycle() -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        x = torch.softmax(x, dim=1)
        return x * torch.sort(x, dim=1)[0]

    compiled = planned(forward, 6, 20)
    assert [k for k in kinds(compiled) if k != "opaque"] == ["rowwise", "rowwise"]
    assert Code.CYCLE in refusal_codes(compiled)
    order = [r.name for r in compiled.planned.regions]
    written = [b.name for r in compiled.planned.regions for b in r.outputs]
    for region in compiled.planned.regions:
        for name in region.reads:
            if name in written:
                producers = [r.name for r in compiled.planned.regions if name in names(r)]
                assert order.index(producers[0]) < order.index(region.name)


def names(region: Region) -> list[str]:
    return [b.name for b in region.outputs]


def test_views_are_seen_through() -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        x = torch.relu(x).view(x.shape[0], 4, 6, 5).transpose(1, 2)
        return torch.softmax(x, dim=-1).flatten(2) * 2.0

    compiled = planned(forward, 3, 24, 5)
    assert kinds(compiled) == ["rowwise"]
    assert ops(compiled.planned.library[0], compiled) == {"relu", "softmax", "mul"}


def test_two_levels_share_a_kernel_and_a_third_does_not() -> None:
    def two(self: Written, x: Tensor) -> Tensor:
        return self.norm(x).amax(dim=1)

    def three(self: Written, x: Tensor) -> Tensor:
        return torch.softmax(self.norm(x).view(-1, 4, 3, 5), dim=3).sum(dim=(2, 3)).amax(dim=1)

    assert kinds(planned(two, 6, 60, norm=nn.GroupNorm(4, 60))) == ["rowwise"]
    compiled = planned(three, 6, 60, norm=nn.GroupNorm(4, 60))
    assert len(compiled.kernels) == 2
    assert set(refusal_codes(compiled)) & {Code.LEVELS, Code.ROWS_DIFFER}


def test_other_axes_need_another_kernel() -> None:
    compiled = planned(lambda self, x: torch.softmax(x, dim=1).sum(dim=0), 7, 9)
    assert kinds(compiled) == ["rowwise", "rowwise"]
    assert refusal_codes(compiled) == [Code.ROWS_DIFFER]
    strided = compiled.planned.regions[1].program
    assert strided is not None and strided.strided


def test_a_second_norm_reads_what_the_first_one_stores() -> None:
    """Not a copy with the squares of it, which nobody else reads."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.normalize(torch.exp(x), dim=1)
        return F.normalize(x.reshape(x.shape[0], -1), dim=1)

    compiled = planned(forward, 3, 7, 20)
    first, second = compiled.planned.regions
    assert [b.name for b in first.outputs] == ["div"]
    assert second.reads == ("div",) and [b.name for b in second.outputs] == ["div_2"]
    x = torch.randn(3, 7, 20)
    found = run_plan(compiled.planned, compiled.problem.module, (x,))
    torch.testing.assert_close(found, forward(None, x.double()))


def test_a_bias_returns_into_the_library_call() -> None:
    compiled = planned(lambda self, x: self.linear(x), 7, 9, linear=nn.Linear(9, 5))
    (region,) = compiled.planned.library
    assert region.kind == "contract" and region.why.code is Code.BIAS_KEPT
    assert "linear_bias" in region.reads


@pytest.mark.parametrize("reduce", [torch.prod, torch.amax])
def test_a_reduction_keeps_the_bias_in_its_kernel(reduce: Callable[..., Tensor]) -> None:
    """The bias alone may go back; a bias that is then reduced must not take that with it."""
    compiled = planned(lambda self, x: reduce(self.linear(x), dim=1), 7, 9, linear=nn.Linear(9, 5))
    assert kinds(compiled) == ["contract", "rowwise"]
    assert len(ops(compiled.planned.library[1], compiled)) == 2


def test_a_bias_joins_the_kernel_that_follows() -> None:
    linear = nn.Linear(9, 5)
    compiled = planned(lambda self, x: F.mish(self.linear(x)), 7, 9, target="cpu", linear=linear)
    assert kinds(compiled) == ["contract", "rowwise"]
    fates = [(row.op, row.fate) for row in compiled.ledger]
    assert fates == [("linear", "aten"), ("linear", "fused"), ("mish", "fused")]


def test_a_long_row_is_not_resident_for_two_levels() -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        return self.norm(x).amax(dim=1)

    compiled = planned(forward, 2, 65536, norm=nn.GroupNorm(64, 65536))
    assert len(compiled.kernels) == 2
    assert refusal_codes(compiled) == [Code.TOO_LONG]
    assert "65536" in compiled.refusals[0]


RESHAPES: dict[str, tuple[Callable[..., Any], int]] = {
    "of an input": (lambda self, x: torch.softmax(x.reshape(-1, 6, 6), -1), 1),
    "of a map": (lambda self, x: torch.softmax(torch.relu(x).reshape(-1, 6, 6), -1), 2),
    "of a result": (lambda self, x: torch.softmax(x, -1).reshape(-1, 6, 6) * 2, 2),
    "between two": (
        lambda self, x: torch.softmax(x.reshape(-1, 6, 6), -1).reshape(-1, 4, 9).sum(-1),
        2,
    ),
    "of a transpose": (
        lambda self, x: torch.softmax(torch.relu(x).permute(0, 2, 1).reshape(-1, 6, 6), -1),
        2,
    ),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_a_reshape_without_common_factors_is_read_from_memory(name: str) -> None:
    """(4, 9) to (6, 6): no splitting of axes gives both, so the reshape ends a kernel."""
    function, kernels = RESHAPES[name]
    compiled = planned(function, 5, 4, 9)
    assert len(compiled.kernels) == kernels
    x = torch.randn(3, 4, 9, dtype=torch.float64)
    got = run_plan(compiled.planned, compiled.problem.module, (x,))
    torch.testing.assert_close(got, function(None, x))


def test_integers_stay_with_aten() -> None:
    compiled = planned(lambda self, x: (torch.relu(x), torch.argmax(x, dim=1) + 1), 7, 9)
    left = {row.op for row in compiled.ledger if row.fate == "aten"}
    assert left == {"argmax", "add"}


def test_estimates_are_the_compulsory_traffic() -> None:
    """A softmax reads its input once and writes its output once."""
    compiled = planned(lambda self, x: torch.softmax(x, dim=1), 8, 128)
    (row,) = compiled.regions
    assert row.bytes == 2 * 8 * 128 * 4
    assert row.launches == 1


def test_paths_of_the_examples_exist() -> None:
    assert len(checking.EXAMPLES) == 3 and all(isinstance(p, Path) for p in checking.EXAMPLES)
