"""The scalar expression: what one element of a map computes.

An Expr is hash-consed, so equal expressions are the same object and common subexpressions are
found by identity. It has three interpretations: `evaluate` (torch, the test oracle), the C++
printer in emit/, and its cost. OPS has one row per operation; a new scalar op is one row here and
one function in kernels/scalar.cuh. All scalar arithmetic is float32 (storage may be narrower), so
an Expr carries no type of its own; comparisons give 1 or 0.

    expr := load(key) | const(number) | size(dim) | index(place) | acc(index) | inside(range)
          | call(op, expr, ...)
"""

from __future__ import annotations

import math
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


@dataclass(frozen=True)
class ScalarOp:
    """One row of the op table. `cost` is in instructions of the device, roughly."""

    name: str
    arity: int
    torch: Callable[..., Tensor]
    cost: int = 1
    infix: str | None = None


def _truth(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args).to(args[0].dtype)


def _where(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(c != 0, a, b)


def _finite_or_zero(x: Tensor) -> Tensor:
    return torch.where(torch.isinf(x), torch.zeros_like(x), x)


def _elu(x: Tensor, alpha: Tensor, scale: Tensor, input_scale: Tensor) -> Tensor:
    return torch.where(x <= 0, torch.expm1(x * input_scale) * alpha * scale, x * scale)


def _softplus(x: Tensor, beta: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)) / beta)


def _gelu_slope(x: Tensor) -> Tensor:
    slope: Tensor = torch.ops.aten.gelu_backward(torch.ones_like(x), x)
    return slope


def _mish_slope(x: Tensor) -> Tensor:
    slope: Tensor = torch.ops.aten.mish_backward(torch.ones_like(x), x)
    return slope


ROWS = (
    ScalarOp("add", 2, torch.add, infix="+"),
    ScalarOp("sub", 2, torch.sub, infix="-"),
    ScalarOp("mul", 2, torch.mul, infix="*"),
    ScalarOp("div", 2, torch.div, cost=4, infix="/"),
    ScalarOp("neg", 1, torch.neg),
    ScalarOp("abs", 1, torch.abs),
    ScalarOp("sign", 1, torch.sign),
    ScalarOp("square", 1, torch.square),
    ScalarOp("reciprocal", 1, torch.reciprocal, cost=4),
    ScalarOp("sqrt", 1, torch.sqrt, cost=4),
    ScalarOp("rsqrt", 1, torch.rsqrt, cost=4),
    ScalarOp("pow", 2, torch.pow, cost=30),
    ScalarOp("exp", 1, torch.exp, cost=10),
    ScalarOp("exp_below", 1, torch.exp, cost=3),
    ScalarOp("expm1", 1, torch.expm1, cost=15),
    ScalarOp("log", 1, torch.log, cost=10),
    ScalarOp("log2", 1, torch.log2, cost=10),
    ScalarOp("log1p", 1, torch.log1p, cost=15),
    ScalarOp("sin", 1, torch.sin, cost=20),
    ScalarOp("cos", 1, torch.cos, cost=20),
    ScalarOp("erf", 1, torch.erf, cost=20),
    ScalarOp("tanh", 1, torch.tanh, cost=14),
    ScalarOp("floor", 1, torch.floor),
    ScalarOp("ceil", 1, torch.ceil),
    ScalarOp("round", 1, torch.round),
    ScalarOp("trunc", 1, torch.trunc),
    ScalarOp("minimum", 2, torch.minimum),
    ScalarOp("maximum", 2, torch.maximum),
    ScalarOp("clamp", 3, torch.clamp, cost=2),
    ScalarOp("relu", 1, F.relu),
    ScalarOp("relu6", 1, F.relu6, cost=2),
    ScalarOp("leaky_relu", 2, lambda x, slope: torch.where(x > 0, x, x * slope), cost=2),
    ScalarOp("elu", 4, _elu, cost=13),
    ScalarOp("gelu", 1, F.gelu, cost=18),
    ScalarOp("gelu_tanh", 1, lambda x: F.gelu(x, approximate="tanh"), cost=10),
    ScalarOp("gelu_slope", 1, _gelu_slope, cost=22),
    ScalarOp("silu", 1, F.silu, cost=6),
    ScalarOp("sigmoid", 1, torch.sigmoid, cost=5),
    ScalarOp("mish", 1, F.mish, cost=10),
    ScalarOp("mish_slope", 1, _mish_slope, cost=14),
    ScalarOp("hardtanh", 3, torch.clamp, cost=2),
    ScalarOp("hardsigmoid", 1, F.hardsigmoid, cost=4),
    ScalarOp("hardswish", 1, F.hardswish, cost=5),
    ScalarOp("softplus", 3, _softplus, cost=13),
    ScalarOp("softsign", 1, F.softsign, cost=5),
    ScalarOp("log_sigmoid", 1, F.logsigmoid, cost=14),
    ScalarOp("lt", 2, _truth(torch.lt)),
    ScalarOp("le", 2, _truth(torch.le)),
    ScalarOp("gt", 2, _truth(torch.gt)),
    ScalarOp("ge", 2, _truth(torch.ge)),
    ScalarOp("eq", 2, _truth(torch.eq)),
    ScalarOp("ne", 2, _truth(torch.ne)),
    ScalarOp("where", 3, _where),
    ScalarOp("finite_or_zero", 1, _finite_or_zero),
)
OPS: Mapping[str, ScalarOp] = {row.name: row for row in ROWS}


class Expr:
    """A node of the scalar DAG. Built by load, const, call and so on; compare with `is`.

    `varies` says whether there is a load, an index or a range in it, `awaits` which is the last
    reduction whose result it uses, or -1, and `ends` keeps what it is made of.
    """

    __slots__ = ("__weakref__", "args", "awaits", "ends", "op", "value", "varies")

    op: str
    args: tuple[Expr, ...]
    value: Hashable
    varies: bool
    awaits: int
    ends: tuple[Expr, ...]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.args)

    def __repr__(self) -> str:
        return show(self)


_INTERNED: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()


def _intern(op: str, args: tuple[Expr, ...], value: Hashable) -> Expr:
    # Constants are keyed by their bits' spelling: 0.0 and -0.0 are equal in Python, and nan is not.
    key = (op, tuple(id(a) for a in args), repr(value) if op == "const" else value)
    found = _INTERNED.get(key)
    if found is None:
        found = object.__new__(Expr)
        found.op, found.args, found.value, found.ends = op, args, value, ()
        found.varies = op in ("load", "index", "inside") or any(a.varies for a in args)
        own = int(str(value)) if op == "acc" else -1
        found.awaits = max((a.awaits for a in args), default=own)
        _INTERNED[key] = found
    return found


def load(key: Hashable) -> Expr:
    """The element of an operand: a slot number in a graph's map, an Access in a kernel program."""
    return _intern("load", (), key)


def const(value: float) -> Expr:
    return _intern("const", (), float(value))


def size(dim: Hashable) -> Expr:
    """A number that is only known at launch: a symbolic dimension, or a product of some."""
    return const(dim) if isinstance(dim, int) else _intern("size", (), dim)


def index(place: Hashable) -> Expr:
    """A place as a number: along an axis of a map's result, of a Coordinate in a kernel program."""
    return _intern("index", (), place)


def acc(index: int) -> Expr:
    """The finished result of reduction `index` of the same program."""
    return _intern("acc", (), index)


def inside(range: Hashable) -> Expr:
    """1 where a coordinate of the loop nest lies in a range, else 0; in kernel programs only."""
    return _intern("inside", (), range)


def call(op: str, *args: Expr | float) -> Expr:
    """Apply a row of OPS; numbers become constants, and constant arguments are folded."""
    row = OPS[op]
    exprs = tuple(a if isinstance(a, Expr) else const(a) for a in args)
    if len(exprs) != row.arity:
        raise ValueError(f"{op} takes {row.arity} arguments, not {len(exprs)}")
    if all(e.op == "const" for e in exprs):
        return const(_fold(row, exprs))
    return _intern(op, exprs, None)


def _fold(row: ScalarOp, args: tuple[Expr, ...]) -> float:
    tensors = [torch.tensor(a.value, dtype=torch.float64) for a in args]
    return float(row.torch(*tensors))


def leaves(expr: Expr, op: str) -> list[Expr]:
    """The distinct leaves of one kind, in the order in which they are first met."""
    if not expr.args:
        return [expr] if expr.op == op else []
    if not expr.ends:  # asked again and again, of each kind
        expr.ends = tuple(e for e in postorder(expr) if not e.args)
    return [e for e in expr.ends if e.op == op]


def postorder(*roots: Expr) -> list[Expr]:
    """Every distinct node once, arguments before their users."""
    seen: dict[int, Expr] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        e, arguments_done = stack.pop()
        if arguments_done:
            seen.setdefault(id(e), e)
        elif id(e) not in seen:
            stack.append((e, True))
            stack += [(a, False) for a in reversed(e.args) if id(a) not in seen]
    return list(seen.values())


def substitute(expr: Expr, mapping: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr`, replacing every node for which `mapping` gives an Expr."""
    return substituted([expr], mapping)[0]


def substituted(exprs: Sequence[Expr], mapping: Callable[[Expr], Expr | None]) -> list[Expr]:
    """The same of several, in one walk over what they share."""
    done: dict[int, Expr] = {}
    for e in postorder(*exprs):
        new = mapping(e)
        if new is None:
            new = e if not e.args else _intern(e.op, tuple(done[id(a)] for a in e.args), e.value)
        done[id(e)] = new
    return [done[id(e)] for e in exprs]


def evaluate(expr: Expr, env: Mapping[Hashable, Tensor]) -> Tensor:
    """The torch interpretation; `env` has leaves by load key, or by their kind and value."""
    done: dict[int, Tensor] = {}
    like = next(iter(env.values()), torch.empty(0, dtype=torch.float64))
    for e in postorder(expr):
        if e.op == "const":
            done[id(e)] = torch.tensor(e.value, dtype=like.dtype, device=like.device)
        elif e.op == "load":
            done[id(e)] = env[e.value]
        elif e.op in ("acc", "size", "index", "inside"):
            done[id(e)] = env[e.op, e.value]
        else:
            done[id(e)] = OPS[e.op].torch(*(done[id(a)] for a in e.args))
    return done[id(expr)]


def in_float32(value: float) -> float:
    """The nearest number that a float32 has."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def cost(*roots: Expr) -> int:
    """Float operations of one evaluation, shared subexpressions counted once."""
    return sum(OPS[e.op].cost for e in postorder(*roots) if e.op in OPS)


# Operations of an expression that is still easier to read as a tree, repetitions and all.
MOST_SHOWN = 60


def show(expr: Expr) -> str:
    """A one-line text: `mish(hardtanh($0 + $1, -1, 1))`.

    Of a large expression, what occurs twice has a name: `t1 * sigmoid(t1) where t1 = exp($0)`.
    """
    texts: dict[Expr, str] = {}
    named: dict[Expr, str] = {}
    names = _repeated(expr)
    for e in postorder(expr):
        parts = [
            f"({texts[a]})" if _is_infix(e) and _is_infix(a) and a not in named else texts[a]
            for a in e.args
        ]
        texts[e] = _shown(e, parts)
        if e in names:
            named[e], texts[e] = texts[e], names[e]
    where = ", ".join(f"{names[e]} = {text}" for e, text in named.items())
    return f"{texts[expr]} where {where}" if where else texts[expr]


def _repeated(expr: Expr) -> dict[Expr, str]:
    """Names for what occurs more than once, if the tree would be too large to read."""
    order = postorder(expr)
    size: dict[Expr, int] = {}
    for e in order:
        size[e] = sum(size[a] for a in e.args) + bool(e.args)
    if size[expr] <= MOST_SHOWN:
        return {}
    uses = Counter(a for e in order for a in e.args)
    repeated = [e for e in order if e.args and uses[e] > 1]
    return {e: f"t{i}" for i, e in enumerate(repeated, 1)}


def _shown(expr: Expr, parts: list[str]) -> str:
    if expr.op == "const":
        value = expr.value
        assert isinstance(value, float)
        return repr(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
    if expr.op == "load":
        return f"${expr.value}"
    if expr.op == "acc":
        return f"r{expr.value}"
    if expr.op in ("size", "index", "inside"):
        return f"#({expr.value})"
    infix = OPS[expr.op].infix
    return f" {infix} ".join(parts) if infix else f"{expr.op}({', '.join(parts)})"


def _is_infix(expr: Expr) -> bool:
    return expr.op in OPS and OPS[expr.op].infix is not None
