"""Slices, cats and numbers made of sizes: what the planner makes of them, and what is emitted."""

from __future__ import annotations

import itertools
import random

import checking
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._sympy import functions
from written import Written, planned, refusal_codes

from kernelwright import interpret
from kernelwright.errors import UnsupportedError
from kernelwright.expr import evaluate, load
from kernelwright.graph import Ref, Scalar
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, Access, Program, tails
from kernelwright.plan.domain import Atoms, Layout, Misaligned, NeedSplit
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module
from kernelwright.scalars import as_expr, as_number, as_python

BATCH = sympy.Symbol("batch", integer=True, positive=True)


def only_program(compiled: Compiled) -> Program:
    (region,) = compiled.planned.regions
    assert region.program is not None
    return region.program


def lanes(compiled: Compiled) -> int:
    (kernel,) = compiled.kernels
    return dict(kernel.config.constants)["kVec"]


def aten(compiled: Compiled) -> list[str]:
    return [row.op for row in compiled.ledger if row.fate == "aten"]


# ---- slices ----------------------------------------------------------------------------------


def test_a_slice_is_read_where_it_lies() -> None:
    compiled = planned(lambda m, x: torch.exp(x[:, 8:24]), 4, 32)
    (access,) = only_program(compiled).loads
    assert (access.buffer, access.offset) == ("x", 8)
    assert sorted(s for _, s in access.strides) == [1, 32]
    assert [row.where for row in compiled.ledger if row.op == "slice"] == ["a view"] * 2


@pytest.mark.parametrize(
    ("start", "features", "width"),
    [(0, 64, 4), (8, 64, 4), (2, 64, 2), (1, 64, 1), (8, 66, 2), (8, 65, 1)],
)
def test_offsets_and_strides_bound_the_width_of_a_load(
    start: int, features: int, width: int
) -> None:
    compiled = planned(lambda m, x: torch.exp(x[:, start : start + 16]), 4, features)
    assert lanes(compiled) == width


def test_a_stepped_slice_is_loaded_with_a_stride() -> None:
    compiled = planned(lambda m, x: torch.exp(x[:, 1::2]), 4, 32)
    assert "kw::load_every<V, 2>(a.x + 1 + at.element * 2)" in compiled.source


def test_a_part_of_what_a_kernel_computes_is_read_from_memory() -> None:
    compiled = planned(lambda m, x: torch.softmax(x, -1)[:, :8] * 2, 4, 32)
    assert Code.SLICED in refusal_codes(compiled)
    assert len(compiled.kernels) == 2 and not aten(compiled)


def test_a_slice_of_a_map_computes_that_part_alone() -> None:
    compiled = planned(lambda m, x: torch.exp(x)[:, 8:16].sum(-1), 4, 32)
    program = only_program(compiled)
    assert program.count(program.elements) == 8


def test_halves_of_a_product_are_no_epilogue() -> None:
    """It would have to hold two columns that are far apart at once."""

    def gated(m: nn.Module, x: Tensor) -> Tensor:
        first, second = m.linear(x).chunk(2, -1)
        return first * torch.sigmoid(second)

    compiled = planned(gated, 4, 32, linear=nn.Linear(32, 64))
    assert Code.WALKS in refusal_codes(compiled)
    assert sum(r.gemm is None and r.program is not None for r in compiled.planned.regions) == 1


def test_a_part_of_the_rows_is_no_epilogue() -> None:
    compiled = planned(lambda m, x: torch.exp(m.linear(x)[:3]), 4, 32, linear=nn.Linear(32, 64))
    assert Code.WALKS in refusal_codes(compiled)


def test_a_product_that_is_returned_through_a_view_is_stored() -> None:
    def both(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        product = m.linear(x)
        return torch.exp(product), product[:, :2]

    linear = nn.Linear(32, 64, bias=False)
    compiled = planned(both, 4, 32, target="cpu", linear=linear)
    assert not tails(compiled.planned)


def test_parts_of_a_bias_stay_parts() -> None:
    """A bias that returns into the library's call is what the user gave, not what it is cut of."""

    def biased(m: nn.Module, x: Tensor) -> Tensor:
        return F.linear(x, m.weight, m.bias[:8])

    parts = {"weight": nn.Parameter(torch.randn(8, 6)), "bias": nn.Parameter(torch.randn(12))}
    compiled = planned(biased, 4, 6, target="cpu", **parts)
    assert "linear(x, weight, bias[:8])" in compiled.source


def test_views_of_an_input_are_returned_as_views() -> None:
    compiled = planned(lambda m, x: (x[:, 2:6:2], x[:, 3], x[1:], torch.exp(x)), 4, 8)
    assert "return (x[:, 2:5:2], x[:, 3:4].reshape((batch,)), x[1:], exp)" in compiled.source


def _elements(atoms: Atoms, layout: Layout, shape: tuple[int, ...]) -> list[int]:
    """The addresses that a layout walks, in the order of its atoms."""
    at = atoms.access("x", shape, layout).at
    ranges = [range(int(str(atoms.sizes[a]))) for a, _ in at.strides]
    strides = [int(str(s)) for _, s in at.strides]
    places = itertools.product(*ranges)
    return [
        int(str(at.offset)) + sum(i * s for i, s in zip(p, strides, strict=True)) for p in places
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_window_under_a_reshape_walks_the_same_elements(seed: int) -> None:
    draw = random.Random(seed)
    inner, outer = draw.choice([2, 3, 4, 6]), draw.choice([1, 2, 3, 4])
    size, step = inner * outer, draw.choice([1, 1, 2, 3, 4])
    start = draw.randrange(size)
    count = draw.randint(1, (size - 1 - start) // step + 1)
    atoms = Atoms()
    (axis,) = atoms.layout((count,))
    while True:
        (window,) = (atoms.window(axis, start, step, size),)
        try:
            below = atoms.regroup((window,), (outer, inner))
            break
        except NeedSplit as need:
            parts = atoms.split(need.atom, need.inner)
            axis = tuple(p for a in axis for p in (parts if a == need.atom else (a,)))
        except Misaligned:
            return
    assert _elements(atoms, below, (outer, inner)) == [start + step * i for i in range(count)]


# ---- cats ------------------------------------------------------------------------------------


def test_a_cat_is_a_choice_among_its_parts() -> None:
    compiled = planned(lambda m, x: torch.relu(torch.cat([x, x * 2], 1)), 4, 16)
    program = only_program(compiled)
    assert [r.limits for r in program.ranges] == [[16], [16]]
    assert ("cat", "fused") in [(row.op, row.fate) for row in compiled.ledger]
    assert "(inside ? x_in[v] : x_in_2[v] * 2.0f)" in compiled.source
    assert "kw::load_row<V>(inside ? a.x + at.row * 16 + at.element : a.x)" in compiled.source


@pytest.mark.parametrize(
    ("parts", "width", "on_the_cpu"), [((16, 16), 4, 16), ((6, 10), 2, 2), ((5, 11), 1, 1)]
)
def test_no_chunk_of_lanes_lies_in_two_parts(
    parts: tuple[int, int], width: int, on_the_cpu: int
) -> None:
    first, second = parts

    def joined(m: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([x[:, :first], x[:, 32 : 32 + second].tanh()], 1) * 2

    assert lanes(planned(joined, 4, 64)) == width
    assert lanes(planned(joined, 4, 64, target="cpu")) == on_the_cpu


def test_a_slice_of_one_part_reads_no_other() -> None:
    compiled = planned(lambda m, x: torch.cat([x, x.tanh(), x + 1], 1)[:, 20:30].exp(), 4, 16)
    program = only_program(compiled)
    assert not program.ranges
    assert [access.offset for access in program.loads] == [4]


def test_a_norm_over_parts_is_one_kernel() -> None:
    compiled = planned(lambda m, x: F.layer_norm(torch.cat([x, x.exp()], 1), (32,)), 4, 16)
    assert len(compiled.kernels) == 1 and not aten(compiled)


def test_what_a_kernel_computes_is_stored_before_it_is_joined() -> None:
    compiled = planned(lambda m, x: torch.cat([x.softmax(-1), x], 1) * 2, 4, 16)
    assert Code.JOINED in refusal_codes(compiled)
    assert len(compiled.kernels) == 2 and not aten(compiled)


def test_parts_that_may_be_empty_stay_with_aten() -> None:
    compiled = planned(lambda m, x: torch.cat([x, x[:1]], 0).exp(), 4, 16)
    assert aten(compiled) == ["cat"]


def test_empty_parts_are_left_out() -> None:
    compiled = planned(lambda m, x: torch.cat([x[:, :0], x], 1).exp(), 4, 16)
    assert not aten(compiled) and not only_program(compiled).ranges


def test_parts_of_other_types_stay_with_aten() -> None:
    compiled = planned(lambda m, x: torch.cat([x, x.half()], 1).exp(), 4, 16)
    assert "cat" in aten(compiled)


def test_empty_values_stay_with_aten() -> None:
    compiled = planned(lambda m, x: x[:, 3:3].sum(-1) + x.sum(-1), 4, 16)
    assert aten(compiled) == ["sum"]


# ---- numbers ---------------------------------------------------------------------------------


def test_a_size_is_a_number_of_the_kernel() -> None:
    compiled = planned(lambda m, x: x / x.shape[0], 4, 16)
    assert "kw::quotient(x_in[v], static_cast<float>((a.batch)))" in compiled.source


def test_an_item_is_the_tensor_itself() -> None:
    compiled = planned(
        lambda m, x: x / (m.scale.item() + 1.0), 4, 16, scale=nn.Parameter(torch.tensor(2.0))
    )
    assert not aten(compiled) and ".item()" not in checking.fused(compiled)


def test_an_item_that_must_be_a_number_is_read() -> None:
    def fed(m: nn.Module, x: Tensor) -> tuple[Tensor, float]:
        return torch.renorm(x, 2, 0, m.limit.item() * 2) + x.shape[0], x.sum().item()

    compiled = planned(fed, 4, 16, target="cpu", limit=nn.Parameter(torch.tensor(2.0)))
    assert "limit.item()" in checking.fused(compiled)
    assert "sum_value.item())" in checking.model_functions(compiled)


def test_an_index_that_elements_decide_stays_with_aten() -> None:
    def chosen(m: nn.Module, x: Tensor) -> Tensor:
        return x.select(1, m.place.item()) * 2

    place = nn.Parameter(torch.tensor(2), requires_grad=False)
    compiled = planned(chosen, 4, 16, target="cpu", place=place)
    assert aten(compiled) == ["select"] and "place.item()" in compiled.source


def test_a_size_that_elements_decide_is_refused() -> None:
    model = Written(lambda m, x: x[x[:, 0] > 0] * 2)
    with pytest.raises(UnsupportedError, match=r"values of tensors|known only when"):
        compile_problem(
            problem_from_module(model, (torch.randn(4, 8),)), target="cpu", policy=ALWAYS
        )


def test_operands_that_agree_for_some_batches_stay_with_aten() -> None:
    """Two halves of a batch are of one size if it is even; export guards that."""

    def multiplied(m: nn.Module, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 0)
        return torch.exp(first * second)

    compiled = planned(multiplied, 4, 16)
    assert aten(compiled) == ["mul"]


NUMBERS = {
    "a root": functions.FloatPow(functions.ToFloat(BATCH), -0.5),
    "a quotient": functions.IntTrueDiv(1, BATCH) + 2.0,
    "a floor": 3 * functions.FloorDiv(BATCH, 4) - 1,
    "the larger": functions.Max(BATCH, 5),
    "a square root": functions.OpaqueUnaryFn_sqrt(BATCH),
    "an element": functions.FloatTrueDiv(sympy.Symbol("zuf0"), functions.ToFloat(BATCH)),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("batch", [1, 6, 23])
def test_the_readings_of_a_number_agree(name: str, batch: int) -> None:
    scalar = Scalar(NUMBERS[name], (("zuf0", Ref("t")),))
    number = as_number(scalar, {BATCH: batch}, {"zuf0": 2.5})
    text = as_python(scalar.expr, {"batch": "batch", "zuf0": "t.item()"})
    assert eval(text, {"batch": batch, "t": torch.tensor(2.5)}) == pytest.approx(number)
    expr = as_expr(scalar.expr, {"zuf0": load(0)})
    assert expr is not None
    wide = torch.float64
    env = {0: torch.tensor(2.5, dtype=wide), ("size", BATCH): torch.tensor(batch, dtype=wide)}
    assert evaluate(expr, env).item() == pytest.approx(number)


def test_a_tensor_of_one_number_is_a_constant() -> None:
    compiled = planned(lambda m, x: torch.where(x > 0, x, torch.zeros_like(x)), 4, 16)
    assert len(only_program(compiled).loads) == 1


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_are_not_finite_reach_the_kernel(value: float) -> None:
    model = Written(lambda m, x: (x.clamp(min=value), torch.where(x > 0, x, torch.tensor(value))))
    x = torch.randn(4, 8)
    compiled = compile_problem(problem_from_module(model, (x,)), target="cuda", policy=ALWAYS)
    assert not aten(compiled)
    assert ("NAN" if value != value else "kw::detail::kInf") in compiled.source
    for got, wanted in zip(
        interpret.run(compiled.primitives, model, (x,))[0], model(x), strict=True
    ):
        torch.testing.assert_close(got, wanted, equal_nan=True)


def test_accesses_print_their_offsets() -> None:
    (access,) = only_program(planned(lambda m, x: torch.exp(x[:, 8:24]), 4, 32)).loads
    assert isinstance(access, Access) and str(access) == "x[8 + 32*i0 + 1*i1]"
