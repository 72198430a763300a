"""Values with several readers: stored or computed again by cost, and the ledger says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from program_interpreter import run_plan
from torch import Tensor, nn
from written import Written, planned, refusal_codes

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, Region
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module

WIDTH, LAYERS = 64, 4


class Block(nn.Module):
    """A block of a transformer, the norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        heads = self.qkv(self.first(x)).reshape(n, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0))
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def transformer(request: pytest.FixtureRequest) -> Compiled:
    torch.manual_seed(0)
    module = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)).eval()
    problem = problem_from_module(module, (torch.randn(4, 12, WIDTH),))
    return compile_problem(problem, target=request.param, policy=ALWAYS)


def bytes_of_blocks(compiled: Compiled) -> list[int]:
    """The traffic of the steps of each block, which its attention parts from the others."""
    found, total = [], 0
    for row in compiled.regions:
        if "scaled_dot_product_attention" in row.ops:
            found.append(total)
            total = 0
        total += row.bytes
    return found


def test_a_residual_stream_costs_each_block_the_same(transformer: Compiled) -> None:
    blocks = bytes_of_blocks(transformer)
    assert len(blocks) == LAYERS
    assert len(set(blocks[1:])) == 1


def test_results_of_the_transformer(transformer: Compiled) -> None:
    module = transformer.problem.module.double()
    x = torch.randn(3, 12, WIDTH, dtype=torch.float64)
    got = run_plan(transformer.planned, module, (x,))
    torch.testing.assert_close(got, module(x))


def test_residual_adds_run_in_the_epilogue_of_the_product_that_feeds_them() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH)).eval()
    problem = problem_from_module(module, (torch.randn(4, 12, WIDTH),))
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    graph = compiled.planned.graph
    streams = [n.name for n in graph if n.op == "map" and n.origin.op == "add"]
    assert len(streams) == 4
    for name in streams[:-1]:  # the last one has no reader but the last norm
        (home,) = [r for r in compiled.planned.regions if name in [b.name for b in r.outputs]]
        assert home.gemm is not None and not home.program.stages
        users = [r for r in compiled.planned.regions if name in r.reads]
        assert len(users) == 2
        norm = next(r for r in users if r.gemm is None)
        assert [b for b in norm.reads if graph[b].op != "parameter"] == [name]
    stored = [row for row in compiled.ledger if row.op == "add" and "stored once" in row.why]
    assert len(stored) == 3 and all("2 kernels" in row.why for row in stored)
    assert Code.EPILOGUE in refusal_codes(compiled)


def kernels(compiled: Compiled) -> list[Region]:
    return [r for r in compiled.planned.library if r.program is not None]


def test_on_the_cpu_the_first_reader_stores_the_stream() -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        x = x + self.a(F.gelu(x))
        return x + self.b(self.norm(x))

    parts = {"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "norm": nn.LayerNorm(64)}
    compiled = planned(forward, 32, 64, target="cpu", **parts)
    norm = next(r for r in kernels(compiled) if r.program.stages)
    assert len(norm.outputs) == 2
    (verdict,) = compiled.planned.shared
    assert verdict.stored and verdict.value in [b.name for b in norm.outputs]


def test_what_costs_less_to_compute_than_to_store_is_computed_again() -> None:
    def forward(self: Written, x: Tensor) -> Any:
        x = torch.relu(x)
        return x.sum(0), x.sum(1)

    compiled = planned(forward, 32, 64)
    (verdict,) = compiled.planned.shared
    assert not verdict.stored and verdict.readers == 2
    assert verdict.why.code is Code.RECOMPUTED
    (row, *_) = [row for row in compiled.ledger if row.op == "relu"]
    assert "computed in each of 2 kernels" in row.why
    assert str(verdict) in str(compiled)


def test_many_operands_are_read_once() -> None:
    """Three operands for two kernels: six reads, or three, a write and one more."""

    def forward(self: Written, x: Tensor) -> Any:
        x = x * self.a + self.b
        return torch.softmax(x, 1), x.sum(0)

    parts = {k: nn.Parameter(torch.randn(32, 64)) for k in "ab"}
    compiled = planned(forward, 32, 64, **parts)
    (verdict,) = compiled.planned.shared
    assert verdict.stored and verdict.why.code is Code.STORED
    first, second = kernels(compiled)
    assert len(first.reads) == 3 and second.reads == (verdict.value,)
    once, again = (dict(verdict.why.numbers)[k] for k in ("once", "again"))
    assert once < again


RETURNED: dict[str, tuple[Callable[..., Any], int]] = {
    "with a reduction": (lambda self, x: (y := torch.tanh(x), torch.softmax(y, 1)), 1),
    "with another map": (lambda self, x: (y := torch.tanh(x), y * 2), 1),
    "over other rows": (lambda self, x: (y := torch.tanh(x), y.sum(0)), 1),
    "a cat": (lambda self, x: (y := torch.cat([x, x * 2], 1), torch.softmax(y, 1)), 1),
    "a part": (lambda self, x: (y := torch.tanh(x), torch.softmax(y[:, :8], 1)), 2),
}


@pytest.mark.parametrize("name", RETURNED)
def test_a_value_that_is_returned_is_stored_where_it_is_used(name: str) -> None:
    function, count = RETURNED[name]
    compiled = planned(function, 12, 20)
    assert len(kernels(compiled)) == count
    x = torch.randn(7, 20, dtype=torch.float64)
    got = run_plan(compiled.planned, compiled.problem.module, (x,))
    torch.testing.assert_close(got, function(None, x))


def test_few_rows_do_not_hold_up_the_storing_of_a_large_value() -> None:
    def forward(self: Written, x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, y.sum(1)

    assert len(kernels(planned(forward, 2048, 4, 3, 20))) == 1
    compiled = planned(lambda self, x: (y := torch.tanh(x), y.sum((0, 2, 3))), 2048, 4, 3, 20)
    assert len(kernels(compiled)) == 2
    assert Code.FEW_PARTS in refusal_codes(compiled)


def test_a_library_call_keeps_the_bias_of_what_it_must_store() -> None:
    def forward(self: Written, x: Tensor) -> Any:
        y = self.linear(x)
        return y, torch.softmax(y, 1)

    compiled = planned(forward, 7, 9, target="cpu", linear=nn.Linear(9, 5))
    product, kernel = compiled.planned.library
    assert product.why.code is Code.BIAS_KEPT
    assert kernel.reads == (product.outputs[0].name,)


@pytest.mark.parametrize("width", [64, 96])
def test_of_two_products_in_a_sum_one_adds_the_other(width: int) -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        return torch.relu(self.a(x) + self.b(x))

    parts = {"a": nn.Linear(64, width), "b": nn.Linear(64, width)}
    module = Written(forward, **parts).eval()
    problem = problem_from_module(module, (torch.randn(256, 64),))
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    first, second = compiled.planned.regions
    assert first.gemm is not None and second.gemm is not None
    assert first.outputs[0].name in second.reads
    assert Code.SECOND in refusal_codes(compiled)


def test_a_stored_sum_of_two_products_is_in_one_epilogue() -> None:
    def forward(self: Written, x: Tensor) -> Tensor:
        x = self.a(x) + self.b(x)
        return x + self.c(self.norm(x))

    parts: dict[str, Any] = {k: nn.Linear(64, 64) for k in "abc"} | {"norm": nn.LayerNorm(64)}
    module = Written(forward, **parts).eval()
    problem = problem_from_module(module, (torch.randn(256, 64),))
    compiled = compile_problem(problem, target="cuda", policy=ALWAYS)
    kinds = [r.kind for r in compiled.planned.regions]
    assert kinds == ["gemm", "gemm", "rowwise", "gemm"]
    x = torch.randn(5, 64, dtype=torch.float64)
    got = run_plan(compiled.planned, module.double(), (x,))
    torch.testing.assert_close(got, module(x))
