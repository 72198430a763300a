"""Steps that work element by element: one value, two that broadcast, truth values, integers."""

from __future__ import annotations

import torch

from fuzzing.writer import BOOL, FLOAT, INT, Refused, Value, Writer

UNARY = (
    "torch.relu({x})",
    "torch.tanh({x})",
    "torch.sigmoid({x})",
    "F.gelu({x})",
    'F.gelu({x}, approximate="tanh")',
    "F.silu({x})",
    "F.mish({x})",
    "F.softplus({x})",
    "F.softplus({x}, beta=2.0, threshold=1.5)",
    "F.elu({x}, 0.7)",
    "F.selu({x})",
    "F.celu({x}, 1.3)",
    "F.leaky_relu({x}, 0.1)",
    "F.leaky_relu({x}, -0.2)",
    "F.relu6({x})",
    "F.hardtanh({x}, -0.7, 0.9)",
    "F.hardsigmoid({x})",
    "F.hardswish({x})",
    "F.softsign({x})",
    "F.logsigmoid({x})",
    "F.tanhshrink({x})",
    "F.softshrink({x}, 0.3)",
    "F.hardshrink({x}, 0.4)",
    "F.threshold({x}, 0.1, -0.5)",
    "torch.abs({x})",
    "-{x}",
    "torch.square({x})",
    "torch.exp(-{x}.abs())",
    "torch.expm1(-{x}.abs())",
    "torch.log({x}.abs() + 0.5)",
    "torch.log1p({x}.abs())",
    "torch.sqrt({x}.abs() + 0.1)",
    "torch.rsqrt({x}.square() + 0.2)",
    "torch.reciprocal({x}.abs() + 0.5)",
    "torch.sin({x})",
    "torch.cos({x})",
    "torch.erf({x})",
    "torch.clamp({x}, -0.8, 1.1)",
    "torch.clamp({x}, min=-0.3)",
    "{x}.clamp(max=0.6)",
    "torch.clamp_min({x}, 0.2)",
    "{x}.clip(-1.0, 0.5)",
    "{x} * 0.5 + 1.0",
    "1.5 - {x}",
    "2.0 / ({x}.abs() + 0.7)",
    "{x} + {x}",
    "{x} * {x}",
    "{x} - 0.25",
    "{x} / 3.0",
    "{x} ** 2",
    "{x} ** 3",
    "({x}.abs() + 0.1) ** 0.5",
    "({x}.abs() + 0.5) ** -1.0",
    "({x}.abs() + 0.2) ** 1.7",
    "torch.pow(0.5, {x}.clamp(-3.0, 3.0))",
    "torch.sign({x})",
    "torch.floor({x})",
    "torch.ceil({x} * 1.3)",
    "torch.round({x} * 2.0)",
    "torch.trunc({x} * 3)",
    "torch.where({x} > 0, {x}, {x} * 0.25)",
    "torch.where({x}.abs() < 0.5, 0.0, {x})",
    "({x} > 0.2).to({x}.dtype)",
    "{x}.detach()",
    "{x}.clone()",
    "{x}.contiguous()",
    "{x}.masked_fill({x} < -0.5, 0.75)",
    "torch.zeros_like({x}) + {x}",
    "torch.full_like({x}, 0.3) * {x}",
    "torch.ones_like({x}) - {x}",
    "{x}.clone().add_(1.0)",
    "({x} * 2.0).relu_()",
    "{x}.mul(0.5).sub_(0.1).tanh_()",
    "{x} * {x}.shape[0]",
    "{x} / {x}.numel()",
    "F.dropout({x}, 0.4, training=False)",
    "torch.frac({x})",
    "torch.nan_to_num({x})",
    "torch.atan({x})",
    "{x}.sigmoid().logit()",
    "torch.lerp({x}, {x} * 2, 0.7)",
    "torch.clamp(torch.relu({x}), max=6.0)",
    "F.relu(F.leaky_relu({x}, 0.2))",
)
BINARY = (
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "{x} / ({y}.abs() + 0.5)",
    "torch.minimum({x}, {y})",
    "torch.maximum({x}, {y})",
    "torch.add({x}, {y}, alpha=0.5)",
    "torch.sub({x}, {y}, alpha=2)",
    "torch.lerp({x}, {y}, 0.3)",
    "torch.where({x} > {y}, {x}, {y} * 0.5)",
    "torch.where({x} > 0, {y}, 0.0)",
    "torch.where({y} < 0.3, 1.0, {x})",
    "torch.addcmul({x}, {y}, {y}, value=0.5)",
    "torch.addcdiv({x}, {y}, {x}.abs() + 0.5, value=2.0)",
    "{x} * torch.sigmoid({y})",
    "torch.rsub({x}, {y})",
    "torch.max({x}, {y})",
    "torch.min({x}, {y})",
    "({x}.abs() + 0.3) ** {y}.clamp(-2.0, 2.0)",
    "torch.atan2({x}, {y}.abs() + 0.2)",
    "torch.hypot({x}, {y})",
    "torch.clamp({x}, min={y})",
    "torch.lerp({x}, {y}, torch.sigmoid({x}))",
    "{x}.masked_fill({y} > 0.5, -1.0)",
    "torch.mul({x}, {y}).add({x})",
    "({x} - {y}).square()",
    "torch.where({x} == {y}, {x}, -{y})",
    "{x}.clone().copy_({x} * 0.5 + {y} - {y})",
)
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGICAL = (
    "torch.logical_and({a}, {b})",
    "torch.logical_or({a}, {b})",
    "torch.logical_xor({a}, {b})",
    "{a} & {b}",
    "{a} | {b}",
    "{a} ^ {b}",
    "~{a}",
    "torch.logical_not({a})",
    "{a} != {b}",
)
CONSTANTS = ("0.0", "1.0", "-1.0", "0.1", "2.0", "-0.5", "1e-3", "3")
INTEGERS = (
    "{i} + 1",
    "{i} * 2 - 3",
    "{i} % 3",
    "{i} // 2",
    "torch.abs({i} - 2)",
    "{i}.clamp(0, 2)",
    "-{i}",
    "torch.minimum({i}, {i} * 2 - 1)",
    "{i} & 1",
)


def unary(w: Writer) -> None:
    w.emit(w.choices.pick(UNARY).format(x=w.value().name))


def broadcasting(w: Writer, x: Value, kind: str = FLOAT) -> Value:
    """A value that broadcasts with another, at both batch sizes."""

    def fits(y: Value) -> bool:
        try:
            for a, b in ((x.first, y.first), (x.second, y.second)):
                torch.broadcast_shapes(a.shape, b.shape)
        except RuntimeError:
            return False
        return True

    return w.value(kind, fits)


def operand(w: Writer, x: Value) -> str:
    """Something to combine a value with: another, a parameter, a buffer, a number, an input."""
    kind = w.choices.integer(0, 9)
    if kind < 5:
        return broadcasting(w, x).name
    if kind == 5:
        return w.choices.pick(CONSTANTS)
    if kind == 6 and x.rank and x.follows(0) and len(w.inputs) < 4:
        sizes = [1 if w.choices.chance(25) else w.fixed(x, i) for i in range(1, x.rank)]
        return w.input(sizes).name
    if kind == 7:
        return w.part("nn.Parameter(torch.randn(()))")
    tail = w.choices.integer(0, x.rank)
    sizes = [1 if x.follows(i) or w.choices.chance(25) else x.shape[i] for i in range(tail, x.rank)]
    made = f"torch.randn({', '.join(map(str, sizes))})" if sizes else "torch.randn(1)"
    return w.part(f"buffer {made}" if w.choices.chance(30) else f"nn.Parameter({made})")


def binary(w: Writer) -> None:
    x = w.value()
    y = operand(w, x)
    text = w.choices.pick(BINARY)
    if y in CONSTANTS:
        text = w.choices.pick(BINARY[:3])
    pair = (x.name, y) if w.choices.chance(75) else (y, x.name)
    w.emit(text.format(x=pair[0], y=pair[1]))


def compare(w: Writer) -> None:
    x = w.value()
    other = w.choices.pick(CONSTANTS) if w.choices.chance(50) else broadcasting(w, x).name
    w.emit(f"{x.name} {w.choices.pick(COMPARISONS)} {other}")


def logical(w: Writer) -> None:
    a = w.value(BOOL)
    w.emit(w.choices.pick(LOGICAL).format(a=a.name, b=broadcasting(w, a, BOOL).name))


def choose(w: Writer) -> None:
    """One of two by a truth value."""
    mask = w.value(BOOL)
    x = broadcasting(w, mask)
    forms = (
        "torch.where({m}, {x}, {y})",
        "torch.where({m}, {x}, 0.5)",
        "{x}.masked_fill({m}, 0.2)",
        "{x} * {m}",
        "{x} + {m}.to({x}.dtype)",
        "torch.where({m}, 1.0, {x})",
    )
    w.emit(w.choices.pick(forms).format(m=mask.name, x=x.name, y=broadcasting(w, x).name))


def mask_input(w: Writer) -> None:
    if len(w.inputs) > 3:
        raise Refused
    x = w.value(FLOAT, lambda v: v.rank > 0 and v.follows(0))
    sizes = [1 if w.choices.chance(25) else w.fixed(x, i) for i in range(1, x.rank)]
    w.input(sizes, "torch.randint(0, 2, ({},)).bool()")
    choose(w)


def integer(w: Writer) -> None:
    forms = ("{i}.to({x}.dtype) * 0.5", "{x} * {i}", "{x} + {i}", "({i} > 1) & ({i} < 4)")
    if not any(v.kind == INT for v in w.values) and len(w.inputs) < 3:
        w.input(
            [w.choices.pick(w.limits.sizes)] * w.choices.integer(0, 1), "torch.randint(0, 6, ({},))"
        )
    i = w.value(INT)
    if w.choices.chance(50):
        w.emit(w.choices.pick(INTEGERS).format(i=i.name))
        return
    w.emit(w.choices.pick(forms).format(i=i.name, x=broadcasting(w, i).name))


def prelu(w: Writer) -> None:
    x = w.value(FLOAT, lambda v: v.rank > 1)
    channels = w.choices.pick((1, w.fixed(x, 1)))
    w.emit(f"{w.part(f'nn.PReLU({channels})')}({x.name})")


def glu(w: Writer) -> None:
    x = w.value()
    w.emit(f"F.glu({x.name}, {w.axis(x)})")


def residual(w: Writer) -> None:
    """A long chain around which the value is added again."""
    x = w.value()
    first, second = w.choices.pick(UNARY), w.choices.pick(UNARY)
    inner = w.emit(first.format(x=x.name))
    inner = w.emit(second.format(x=inner.name))
    w.emit(f"{x.name} + {inner.name}")


POINTWISE = (
    unary,
    unary,
    unary,
    binary,
    binary,
    binary,
    compare,
    logical,
    choose,
    mask_input,
    integer,
    prelu,
    glu,
    residual,
)
