"""Numbers that are known only at a call: made of sizes, and of elements that .item() reads.

A Scalar (graph.py) holds them as the sympy expression that torch.export leaves. It has the three
readings of everything here: a scalar Expr for a kernel, Python text for an ATen call, and a number
for the interpreter. FUNCTIONS has one row for each function of torch's own sympy that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from kernelwright.errors import UnsupportedError
from kernelwright.expr import Expr, call, const, size
from kernelwright.graph import Scalar


@dataclass(frozen=True)
class Function:
    """How a sympy function is computed in a kernel, and spelled in Python (with its arguments)."""

    expr: Callable[..., Expr] | None
    python: str | None


def _pow(base: Expr, exponent: Expr) -> Expr:
    if exponent.op == "const" and exponent.value in (0.5, -0.5):
        root = call("sqrt", base)
        return root if exponent.value == 0.5 else call("div", 1.0, root)
    return call("pow", base, exponent)


def _op(name: str) -> Callable[..., Expr]:
    return lambda *args: call(name, *args)


def _chain(name: str) -> Callable[..., Expr]:
    def fold(first: Expr, *rest: Expr) -> Expr:
        for other in rest:
            first = call(name, first, other)
        return first

    return fold


FUNCTIONS: Mapping[str, Function] = {
    "Add": Function(_chain("add"), None),
    "Mul": Function(_chain("mul"), None),
    "Pow": Function(_pow, "({} ** {})"),
    "FloatPow": Function(_pow, "({} ** {})"),
    "PowByNatural": Function(_pow, "({} ** {})"),
    "FloatTrueDiv": Function(_op("div"), "({} / {})"),
    "IntTrueDiv": Function(_op("div"), "({} / {})"),
    "FloorDiv": Function(lambda a, b: call("floor", call("div", a, b)), "({} // {})"),
    "CleanDiv": Function(_op("div"), "({} // {})"),
    "Mod": Function(None, "({} % {})"),
    "PythonMod": Function(None, "({} % {})"),
    "Max": Function(_chain("maximum"), "max({})"),
    "Min": Function(_chain("minimum"), "min({})"),
    "Abs": Function(_op("abs"), "abs({})"),
    "ToFloat": Function(lambda a: a, "float({})"),
    "TruncToInt": Function(_op("trunc"), "int({})"),
    "OpaqueUnaryFn_sqrt": Function(_op("sqrt"), "({} ** 0.5)"),
    "OpaqueUnaryFn_exp": Function(_op("exp"), None),
    "OpaqueUnaryFn_log": Function(_op("log"), None),
    "OpaqueUnaryFn_sin": Function(_op("sin"), None),
    "OpaqueUnaryFn_cos": Function(_op("cos"), None),
    "OpaqueUnaryFn_tanh": Function(_op("tanh"), None),
}


def as_expr(value: Any, items: Mapping[str, Expr]) -> Expr | None:
    """The number inside a kernel; `items` are elements by symbol. None: there is no such form."""
    if value.is_Symbol:
        return items.get(str(value), size(value))
    if value.is_number:
        return const(float(value))
    function = FUNCTIONS.get(type(value).__name__)
    args = [as_expr(a, items) for a in value.args]
    if function is None or function.expr is None or any(a is None for a in args):
        return None
    return function.expr(*args)


def as_python(value: Any, names: Mapping[str, str]) -> str:
    """Python text of the number; `names` are what its symbols are called."""
    if value.is_Symbol:
        return names[str(value)]
    if value.is_number:
        return repr(int(value) if value.is_Integer else float(value))
    kind = type(value).__name__
    args = [as_python(a, names) for a in value.args]
    if kind in ("Add", "Mul"):
        return f"({(' + ' if kind == 'Add' else ' * ').join(args)})"
    function = FUNCTIONS.get(kind)
    if function is None or function.python is None:
        raise UnsupportedError(
            f"An ATen call needs the number {value}, which cannot be written in Python here; "
            "compute it with tensors instead."
        )
    pattern = function.python
    takes_all = pattern.count("{}") != len(args)
    return pattern.format(", ".join(args)) if takes_all else pattern.format(*args)


def as_number(scalar: Scalar, sizes: Mapping[Any, int], items: Mapping[str, Any]) -> int | float:
    """What the scalar is at these sizes and with these elements."""
    known = dict(sizes) | {s: items[str(s)] for s in scalar.expr.free_symbols if str(s) in items}
    found = scalar.expr.subs(known)
    return int(found) if isinstance(found, sympy.Integer) else float(found)
