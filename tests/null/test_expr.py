"""The scalar expression: identity, folding, the torch interpretation, cost and text."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable

import pytest
import sympy
import torch
import torch.nn.functional as F

from kernelwright import expr as module
from kernelwright.expr import (
    OPS,
    ROWS,
    acc,
    call,
    const,
    cost,
    evaluate,
    leaves,
    load,
    postorder,
    show,
    size,
    substitute,
)

Tensor = torch.Tensor
X = torch.tensor([-30.0, -3.0, -1.0, -0.5, -0.0, 0.0, 1e-6, 0.5, 1.0, 3.0, 25.0, 30.0])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf])


def test_equal_expressions_are_the_same_object() -> None:
    assert call("add", load(0), 1) is call("add", load(0), const(1.0))
    assert call("add", load(0), load(1)) is not call("add", load(1), load(0))
    assert load(0) is not acc(0)
    assert load("row") is load("row")
    assert {call("mish", load(0)), call("mish", load(0))} == {call("mish", load(0))}


def test_constants_are_told_apart_by_their_bits() -> None:
    assert const(0.0) is not const(-0.0)
    assert const(math.nan) is const(math.nan)
    assert const(1) is const(1.0)
    assert const(math.inf) is not const(-math.inf)
    assert math.copysign(1, float(str(call("neg", 0.0).value))) == -1


def test_forgotten_expressions_leave_the_table() -> None:
    gc.collect()
    before = len(module._INTERNED)
    made = call("tanh", load("a key that nothing else uses"))
    assert len(module._INTERNED) == before + 2
    del made
    gc.collect()
    assert len(module._INTERNED) == before


def test_constant_arguments_are_folded() -> None:
    assert call("add", 1, 2) is const(3)
    assert call("clamp", call("mul", 3, 4), -1, 1) is const(1)
    assert call("div", 1, 0) is const(math.inf)
    assert call("minimum", math.nan, 0) is const(math.nan)
    assert call("lt", 1, 2) is const(1)
    assert call("add", load(0), 0).op == "add", "an identity of real numbers is no fold"


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(ValueError, match="clamp takes 3 arguments, not 2"):
        call("clamp", load(0), 1)
    with pytest.raises(KeyError):
        call("frobnicate", load(0))


REFERENCES: dict[str, tuple[tuple[float, ...], Callable[[Tensor], Tensor]]] = {
    "abs": ((), torch.abs),
    "square": ((), lambda x: x * x),
    "reciprocal": ((), lambda x: 1 / x),
    "expm1": ((), torch.expm1),
    "relu": ((), F.relu),
    "relu6": ((), F.relu6),
    "clamp": ((-1.0, 0.5), lambda x: x.clamp(-1, 0.5)),
    "hardtanh": ((-2.0, 2.0), lambda x: F.hardtanh(x, -2, 2)),
    "leaky_relu": ((0.01,), lambda x: F.leaky_relu(x, 0.01)),
    "elu": ((1.5, 1.0, 1.0), lambda x: F.elu(x, 1.5)),
    "gelu": ((), F.gelu),
    "gelu_tanh": ((), lambda x: F.gelu(x, approximate="tanh")),
    "silu": ((), lambda x: x * torch.sigmoid(x)),
    "sigmoid": ((), torch.sigmoid),
    "mish": ((), F.mish),
    "hardsigmoid": ((), lambda x: F.relu6(x + 3) / 6),
    "hardswish": ((), F.hardswish),
    "softplus": ((2.0, 20.0), lambda x: F.softplus(x, beta=2)),
    "softsign": ((), F.softsign),
    "log_sigmoid": ((), F.logsigmoid),
    "maximum": ((0.25,), lambda x: torch.maximum(x, torch.tensor(0.25))),
    "gt": ((0.0,), lambda x: (x > 0).float()),
}


@pytest.mark.parametrize("op", REFERENCES)
def test_the_table_computes_what_torch_does(op: str) -> None:
    numbers, reference = REFERENCES[op]
    expr = call(op, load("x"), *numbers)
    torch.testing.assert_close(evaluate(expr, {"x": X}), reference(X), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "op", ["relu", "relu6", "clamp", "hardtanh", "leaky_relu", "maximum", "elu"]
)
def test_nan_and_infinity_pass_as_in_torch(op: str) -> None:
    numbers, reference = REFERENCES[op]
    expr = call(op, load("x"), *numbers)
    result = evaluate(expr, {"x": SPECIAL})
    torch.testing.assert_close(result, reference(SPECIAL), rtol=0, atol=0, equal_nan=True)


def test_selu_is_an_elu() -> None:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    expr = call("elu", load(0), alpha, scale, 1)
    torch.testing.assert_close(evaluate(expr, {0: X}), F.selu(X))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_takes_its_arguments_and_has_a_cost(row: module.ScalarOp) -> None:
    args = [load(i) for i in range(row.arity)]
    env = {i: torch.rand(4, dtype=torch.float64) for i in range(row.arity)}
    result = evaluate(call(row.name, *args), env)
    assert result.shape == (4,) and result.dtype == torch.float64
    assert row.cost >= 1 and OPS[row.name] is row


def test_evaluation_broadcasts_and_reads_accumulators() -> None:
    row, column = torch.rand(1, 5), torch.rand(3, 1)
    expr = call("div", call("sub", load("a"), acc(0)), load("b"))
    result = evaluate(expr, {"a": row, "b": column, ("acc", 0): torch.tensor(0.5)})
    torch.testing.assert_close(result, (row - 0.5) / column)


def test_a_size_is_a_number_that_is_known_at_launch() -> None:
    batch = sympy.Symbol("batch", integer=True, positive=True)
    mean = call("div", load(0), size(4 * batch))
    assert size(4) is const(4)
    assert size(batch * 4) is size(4 * batch)
    assert show(mean) == "$0 / #(4*batch)"
    env = {0: torch.tensor([6.0]), ("size", 4 * batch): torch.tensor(12.0)}
    assert evaluate(mean, env).item() == 0.5


def test_shared_parts_are_visited_and_paid_for_once() -> None:
    shared = call("exp", load(0))
    expr = call("mul", shared, call("add", shared, 1))
    assert [e.op for e in postorder(expr)] == ["load", "exp", "const", "add", "mul"]
    assert cost(expr) == OPS["exp"].cost + OPS["add"].cost + OPS["mul"].cost
    assert cost(shared, expr) == cost(expr)
    assert leaves(expr, "load") == [load(0)]


def test_substitution_rebuilds_only_what_changes() -> None:
    expr = call("add", call("tanh", load(0)), call("exp", load(1)))
    changed = substitute(expr, lambda e: load(2) if e is load(0) else None)
    assert changed is call("add", call("tanh", load(2)), call("exp", load(1)))
    assert substitute(expr, lambda e: None) is expr


def test_the_text_of_an_expression() -> None:
    expr = call("mish", call("hardtanh", call("add", load(0), load(1)), -1, 1))
    assert show(expr) == repr(expr) == "mish(hardtanh($0 + $1, -1, 1))"
    nested = call("mul", call("sub", load("x"), acc(1)), call("div", 0.5, load("n")))
    assert show(nested) == "($x - r1) * (0.5 / $n)"
    assert show(call("minimum", load(0), math.inf)) == "minimum($0, inf)"
