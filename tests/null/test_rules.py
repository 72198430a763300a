"""Both sides of every law, run and compared: one row of CASES a law, and every law has a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.capture import capture
from kernelwright.graph import Graph
from kernelwright.interpret import run
from kernelwright.pattern import Exactness, refusals, rewrite
from kernelwright.problem import problem_from_module
from kernelwright.rules import ALL_RULES, in_double
from kernelwright.spec import check_graph

Tensor = torch.Tensor
Forward = Callable[..., Any]
SIZES = ((3, 5), (7, 1))
NAN, INF = float("nan"), float("inf")
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 6.0, -1.0, 1e30, 1e-40)


class Written(nn.Module):
    """A module from one expression and its parts: tensors become parameters."""

    def __init__(self, forward: Forward, **parts: Any) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


@dataclass(frozen=True)
class Case:
    """`model(n)` makes a module over features n; its input has `shape(batch, n)`."""

    law: str
    model: Callable[[int], nn.Module]
    shape: Callable[[int, int], tuple[int, ...]] = lambda batch, n: (batch, n)


def written(law: str, forward: Forward, **parts: Callable[[int], Any]) -> Case:
    return Case(law, lambda n: Written(forward, **{k: make(n) for k, make in parts.items()}))


def image(law: str, forward: Forward, **parts: Callable[[int], Any]) -> Case:
    model = written(law, forward, **parts).model
    return Case(law, model, lambda batch, n: (batch, n, 4, 3))


def space(size: tuple[int, ...], law: str, forward: Forward, **parts: Callable[[int], Any]) -> Case:
    """n channels over a space of this size; the parts are as they are in eval mode."""
    model = written(law, forward, **parts).model
    return Case(law, lambda n: model(n).eval(), lambda batch, n: (batch, n, *size))


RULE = {rule.name: rule for rule in ALL_RULES}
FOLD = "clamp(clamp(x, a, b), c, d) => clamp(x, max(a, c), min(max(b, c), d))"
ABSORB = "clamp(clamp(x, a, b), c, d) => clamp(x, a, b) if [a, b] lies in [c, d]"
LEAKY = "leaky_relu(clamp(x, a, b), s) => clamp(x, a, b) if a >= 0"
SHIFT = "(x + a) + b => x + (a + b)"
SCALE = "(x * a) * b => x * (a * b)"
AXES = "reduce(x) over axes of size 1 => x"
INDEXED = "max(x) over an axis of size 1 => x"
ELEMENT = "reduce(x) of one element => x"
LINEAR = "linear(x, W, b) + c => linear(x, W, b + c)"
CONV = "conv(x, W, b) + c => conv(x, W, b + c)"
BIASES = "(x + b) + c => x + (b + c)"
NORM = "norm(x + c) => norm(x)"
FEATURES = "sum_j linear(x, W, b)_j => x @ sum_j W_j + sum_j b_j"
FACTOR_PAST = "sum(x * a) => sum(x) * a"
SHIFT_PAST = "sum(x + c) => sum(x) + n * c"
ADDED_PAST = "sum(x + c) => sum(x) + sum(c)"
TAKEN_PAST = "sum(x - c) => sum(x) - sum(c)"
GAIN_PAST = "sum(x * s) => sum(x) * s"
DIVISOR_PAST = "sum(x / s) => sum(x) / s"
GAINS = "linear(x, W, b) * s => linear(x, s W, s b) if it is summed"
DIVISORS = "linear(x, W, b) / s => linear(x, W / s, b / s) if it is summed"
MOVE_PAST = "sum(move(x)) => move(sum(x))"
NORM_PAST = "mean(batch_norm(x)) => batch_norm(mean(x)) in eval mode"
GLOBAL_POOL = "pool(x) over all of the space => mean(x)"
BIAS_ASIDE = "batch_norm(x W + b) => batch_norm(x W) in train mode, with b in its running mean"
SPACE_MEAN = "mean(conv(x, W, b)) over space => linear(sums of x for each tap, W, b)"
POOL_FIRST = "avg_pool(conv(x, W, b), p) => conv(avg_pool(x, p, stride 1), W, b, stride p)"
TWO_MAX = "max_pool(max_pool(x, a), b) => max_pool(x, a * b)"
TWO_AVG = "avg_pool(avg_pool(x, a), b) => avg_pool(x, a * b)"
MEAN_POOL = "mean(avg_pool(x)) => mean(x)"
CLIPS = "max_pool(f(x)) => f(max_pool(x)) if f clips, shifts or scales by a positive number"
INCREASING = "max_pool(f(x)) => f(max_pool(x)) if f is increasing"
EXTREME = "max(f(x)) => f(max(x)), and so for min, if f clips, or shifts or scales by a number"
SMOOTH_EXTREME = "max(f(x)) => f(max(x)), and so for min, if f is increasing"
EXTREME_VALUES = f"values of {EXTREME}"
SMOOTH_VALUES = f"values of {SMOOTH_EXTREME}"
SCALED = "(x * c) @ y => (x @ y) * c"
ROLLED = "roll(layer_norm(x)) => layer_norm(roll(x))"


def vector(n: int) -> Tensor:
    return torch.randn(n)


def two(x: Tensor) -> Tensor:
    """Neighbours along a new axis."""
    return torch.stack((x.sin(), torch.neg(x)))


def square(n: int) -> Tensor:
    return torch.randn(n, n)


def channels(n: int) -> Tensor:
    return torch.randn(5, 1, 1)


def one(n: int) -> Tensor:
    return torch.randn(1)


def six(n: int) -> Tensor:
    return torch.randn(6)


def linear(n: int) -> nn.Module:
    return nn.Linear(n, 6)


def unbiased(n: int) -> nn.Module:
    return nn.Linear(n, 6, bias=False)


def conv(n: int) -> nn.Module:
    return nn.Conv2d(n, 5, 3, padding=1)


def trained(product: Callable[[int], nn.Module], norm: Callable[[int], nn.Module]) -> Case:
    """A product of n channels and the norm of its five, over a space of its rank, in train mode."""
    model = written(BIAS_ASIDE, lambda m, x: m.norm(m.product(x)), product=product, norm=norm).model
    rank = model(2).product.weight.ndim - 2  # type: ignore[operator, union-attr]
    return Case(
        BIAS_ASIDE, lambda n: model(n).train(), lambda batch, n: (batch, n, *(7, 6, 5)[:rank])
    )


def averaged(m: Any) -> Any:
    """The weights and statistics of a norm, as training would have left them."""
    for value in (m.weight, m.bias, m.running_mean):
        nn.init.normal_(value)
    nn.init.uniform_(m.running_var, 0.5, 2)
    return m


LINEARITY = [
    written(FEATURES, lambda m, x: m.l(x).sum(1, keepdim=True) * 1.5, l=linear),
    written(FEATURES, lambda m, x: m.l(x).mean(-1), l=lambda n: nn.Linear(n, 7, bias=False)),
    Case(
        FEATURES,
        lambda n: Written(lambda m, x: m.l(x).sum((1, 2)), l=linear(n)),
        lambda batch, n: (batch, 4, n),
    ),
    written(FACTOR_PAST, lambda m, x: (m.l(x) / 2).sum(1, keepdim=True), l=linear),
    written(FACTOR_PAST, lambda m, x: (m.l(x) * -0.7).mean(1), l=linear),
    written(SHIFT_PAST, lambda m, x: (m.l(x) - 0.3).sum(1), l=linear),
    written(SHIFT_PAST, lambda m, x: (m.l(x) * 2 + 0.3).mean(1, keepdim=True), l=linear),
    space((9, 7), SHIFT_PAST, lambda m, x: F.avg_pool2d(m.conv(x) + 2, 2), conv=conv),
    written(GAINS, lambda m, x: (m.l(x) * m.s + m.c).sum(1), l=linear, s=six, c=six),
    written(GAINS, lambda m, x: (m.s * m.l(x)).mean(1, keepdim=True), l=linear, s=six),
    Case(
        GAINS,
        lambda n: Written(lambda m, x: (m.l(x) * m.s).sum((0, 2)), l=linear(n), s=six(n)),
        lambda batch, n: (batch, 4, n),
    ),
    written(DIVISORS, lambda m, x: (m.l(x) / m.s).sum(1), l=unbiased, s=six),
    written(GAINS, lambda m, x: (m.l(x) * m.s - m.c + 2).sum(1, True), l=linear, s=six, c=six),
    written(ADDED_PAST, lambda m, x: (m.l(x) * 2 + m.c).mean(1), l=linear, c=six),
    written(ADDED_PAST, lambda m, x: (m.c + m.l(x) / 2).sum(1), l=linear, c=one),
    written(TAKEN_PAST, lambda m, x: (m.l(x) / 2 - m.c).sum(1, True), l=linear, c=six),
    *(
        space((9, 7), law, lambda m, x, f=f: f(m, m.conv(x)), conv=conv, s=channels, c=channels)
        for law, f in (
            (ADDED_PAST, lambda m, y: (y * m.s + m.c).sum((2, 3))),
            (ADDED_PAST, lambda m, y: F.avg_pool2d(y / m.s + m.c, 2)),
            (TAKEN_PAST, lambda m, y: (y * m.s - m.c).mean((1, 2, 3))),
            (TAKEN_PAST, lambda m, y: F.avg_pool2d(y * m.s - m.c, 2)),
            (GAIN_PAST, lambda m, y: (y * m.s).mean((2, 3))),
            (GAIN_PAST, lambda m, y: F.avg_pool2d(m.s * y, 3, 2, 1, ceil_mode=True)),
            (GAIN_PAST, lambda m, y: (y * m.s).sum((-1, -2), keepdim=True)),
            (DIVISOR_PAST, lambda m, y: (y / m.s).mean((2, 3))),
            (DIVISOR_PAST, lambda m, y: F.avg_pool2d(y / m.s, 3)),
        )
    ),
    written(GAIN_PAST, lambda m, x: (m.l(x) * m.s).mean(1), l=linear, s=one),
    written(DIVISOR_PAST, lambda m, x: (m.l(x) / m.s).sum(1, True), l=linear, s=one),
    written(MOVE_PAST, lambda m, x: m.l(x).t().sum(0), l=linear),
    written(MOVE_PAST, lambda m, x: m.l(x).transpose(0, 1).mean(0, keepdim=True), l=linear),
    written(MOVE_PAST, lambda m, x: m.l(x).unsqueeze(1).sum((1, 2)), l=linear),
    Case(
        MOVE_PAST,
        lambda n: Written(lambda m, x: m.l(x).permute(2, 1, 0).sum(0), l=linear(n)),
        lambda batch, n: (batch, 4, n),
    ),
    written(
        GLOBAL_POOL,
        lambda m, x: F.avg_pool1d(m.l(x).unsqueeze(1), 6).squeeze(1),
        l=linear,
    ),
    space((8, 6), GLOBAL_POOL, lambda m, x: F.adaptive_avg_pool2d(m.conv(x), 1), conv=conv),
    space(
        (8, 6),
        NORM_PAST,
        lambda m, x: m.norm(m.conv(x)).mean((2, 3)),
        conv=conv,
        norm=lambda n: averaged(nn.BatchNorm2d(5)),
    ),
    *(
        space(size, SPACE_MEAN, lambda m, x, f=f: f(m.conv(x)), conv=make)
        for size, make, f in (
            ((8, 6), conv, lambda y: y.mean((2, 3), keepdim=True)),
            ((8, 6), conv, lambda y: y.mean((1, 2, 3))),
            ((9, 7), lambda n: nn.Conv2d(n, 5, 1, bias=False), lambda y: y.sum((2, 3))),
            ((9, 11), lambda n: nn.Conv2d(n, 5, (3, 5)), lambda y: y.mean((2, 3))),
            ((9, 11), lambda n: nn.Conv2d(n, 5, 3, padding="same"), lambda y: y.sum((2, 3))),
            ((15, 12), lambda n: nn.Conv2d(n, 5, 3, 2, 1), lambda y: y.mean((2, 3))),
            ((15, 12), lambda n: nn.Conv2d(n, 5, 2, 3), lambda y: y.sum((2, 3))),
            ((15, 14), lambda n: nn.Conv2d(n, 5, 3, 2, 2, dilation=2), lambda y: y.sum((2, 3))),
            ((37,), lambda n: nn.Conv1d(n, 4, 7, padding=3), lambda y: y.mean(2)),
            ((6, 5, 7), lambda n: nn.Conv3d(n, 4, 3, padding=1), lambda y: y.mean((2, 3, 4))),
            (
                (5, 6),
                lambda n: nn.ConvTranspose2d(n, 4, 3, 2, 1, output_padding=1),
                lambda y: y.mean((2, 3)),
            ),
            (
                (5, 4, 6),
                lambda n: nn.ConvTranspose3d(n, 4, 3, 2, 1),
                lambda y: y.mean((2, 3, 4), keepdim=True),
            ),
            ((7,), lambda n: nn.ConvTranspose1d(n, 4, 4, 3, dilation=2), lambda y: y.sum(-1)),
        )
    ),
    *(
        space(size, POOL_FIRST, lambda m, x, f=f: f(m.conv(x)), conv=make)
        for size, make, f in (
            ((8, 6), conv, lambda y: F.avg_pool2d(y, 2)),
            ((11, 9), conv, lambda y: F.avg_pool2d(y, (3, 2))),
            ((9, 9), lambda n: nn.Conv2d(n, 6, 3, padding="same"), lambda y: F.avg_pool2d(y, 2)),
            ((11, 9), lambda n: nn.Conv2d(n, 8, 3, bias=False), lambda y: F.avg_pool2d(y, 4)),
            ((13,), lambda n: nn.Conv1d(n, 8, 3, dilation=2), lambda y: F.avg_pool1d(y, 2)),
            ((7, 6, 8), lambda n: nn.Conv3d(n, 6, 3, padding=1), lambda y: F.avg_pool3d(y, 2)),
            ((9, 8), lambda n: nn.Conv2d(n, 2 * n, 3, groups=n), lambda y: F.avg_pool2d(y, 2)),
        )
    ),
]

POOLING = [
    space((13, 14), TWO_MAX, lambda m, x: F.max_pool2d(F.max_pool2d(x, 2), 3)),
    space((13, 14), TWO_MAX, lambda m, x: F.max_pool2d(F.max_pool2d(x, (2, 1)), 3, stride=2)),
    space((12, 7, 9), TWO_MAX, lambda m, x: F.max_pool3d(F.max_pool3d(x, 2), 2)),
    space((23,), TWO_MAX, lambda m, x: F.max_pool1d(F.max_pool1d(x, 2), 3)),
    space((13, 14), TWO_AVG, lambda m, x: F.avg_pool2d(F.avg_pool2d(x, 2), 3)),
    space((23,), TWO_AVG, lambda m, x: F.avg_pool1d(F.avg_pool1d(x, 2), 3, stride=1)),
    space((12, 6), MEAN_POOL, lambda m, x: F.avg_pool2d(x, (3, 2)).mean((2, 3))),
    *(
        space((9, 8), CLIPS, lambda m, x, f=f: F.max_pool2d(f(x), 2))
        for f in (
            F.relu,
            F.hardtanh,
            lambda x: F.leaky_relu(x, 0.1),
            lambda x: x * 0.3 + 1.7,
            lambda x: x / 3 - 0.1,
        )
    ),
    space((9, 8), CLIPS, lambda m, x: F.max_pool2d(F.relu(x), 3, 2, 1, ceil_mode=True)),
    space((9, 8), CLIPS, lambda m, x: F.max_pool2d(x + m.c, 2), c=lambda n: torch.randn(n, 1, 1)),
    *(
        space((9, 8), INCREASING, lambda m, x, f=f: F.max_pool2d(f(x), 2))
        for f in (torch.sigmoid, torch.tanh, torch.exp, F.elu, F.selu, F.softplus, F.hardsigmoid)
    ),
]

CASES = [
    written("x * 1 => x", lambda m, x: torch.sin(x) * 1),
    written("x / 1 => x", lambda m, x: torch.sin(x) / 1.0),
    written("x + x => 2 * x", lambda m, x: x + x),
    written(SHIFT, lambda m, x: (x + 0.7) + 1.9),
    written(SHIFT, lambda m, x: (x - 3) + 2.5),
    written(SHIFT, lambda m, x: torch.sub(torch.add(x, 3, alpha=2), 0.25, alpha=3)),
    written(SCALE, lambda m, x: (x * 0.3) * 7),
    written("(x / a) / b => x / (a * b)", lambda m, x: (x / 3) / 0.7),
    written("(x * a) / b => x * (a / b)", lambda m, x: (x * 5) / 0.3),
    written("(x / a) * b => x * (b / a)", lambda m, x: (x / 0.9) * 11),
    written(FOLD, lambda m, x: F.hardtanh(x, -2, 3).clamp(-1, 5)),
    written(FOLD, lambda m, x: F.relu(x).clamp_max(0.5)),
    written(FOLD, lambda m, x: F.relu6(F.hardtanh(x, -9, 9))),
    written(FOLD, lambda m, x: x.clamp(max=0.5).clamp(min=0.25)),
    written(FOLD, lambda m, x: x.clip(-3, -2).clamp(1, 2)),
    written(FOLD, lambda m, x: x.clamp(5, 1).clamp_min(-1).clamp_max(0.5)),
    written(FOLD, lambda m, x: x.clamp(-1, 1).clamp_min(float("inf"))),
    written(ABSORB, lambda m, x: F.relu(F.relu(x))),
    written(ABSORB, lambda m, x: F.relu6(x).clamp(-1, 7)),
    written(LEAKY, lambda m, x: F.leaky_relu(F.relu(x), 0.01)),
    written(LEAKY, lambda m, x: F.leaky_relu(x.clamp(0.5, 2), -3.0)),
    *(
        written(AXES, lambda m, x, f=f: f(torch.neg(x[:, :1])))
        for f in (
            lambda y: y.sum(1),
            lambda y: y.mean(1, keepdim=True),
            lambda y: y.prod(1),
            lambda y: y.amax(-1),
            lambda y: y.amin((1,), keepdim=True),
            lambda y: torch.logsumexp(y, 1),
            lambda y: y.unsqueeze(2).sum((1, 2)),
        )
    ),
    written(AXES, lambda m, x: torch.logsumexp(torch.neg(x.unsqueeze(1)), 1)),
    written(INDEXED, lambda m, x: torch.max(x.abs().unsqueeze(1), 1)[0]),
    written(INDEXED, lambda m, x: torch.min(x.abs().unsqueeze(1), 1, keepdim=True).values),
    *(
        written(EXTREME, lambda m, x, f=f: f(two(x)))
        for f in (
            lambda y: F.relu(y).amax(0),
            lambda y: F.leaky_relu(y, 0.2).amin(-3, keepdim=True),
            lambda y: (y * 3).max(),
            lambda y: (y / 0.3).amin((0, 1)),
            lambda y: torch.sub(y, 0.75, alpha=2).amax(0),
        )
    ),
    *(
        written(SMOOTH_EXTREME, lambda m, x, f=f: torch.amin(f(two(x)), 0))
        for f in (torch.sigmoid, torch.tanh, torch.exp, F.elu, F.selu, F.softplus, torch.atan)
    ),
    written(EXTREME_VALUES, lambda m, x: torch.max(F.hardtanh(two(x), -0.5, 0.7), 0)[0]),
    written(SMOOTH_VALUES, lambda m, x: torch.min(torch.tanh(two(x)), 0, keepdim=True).values),
    written(ELEMENT, lambda m, x: x[0, 0].exp().sum() + x.sum()),
    written(ELEMENT, lambda m, x: x[0, 0].exp().max() + x),
    written(LINEAR, lambda m, x: m.l(x) + m.c, l=lambda n: nn.Linear(n, 6), c=lambda n: vector(6)),
    written(
        LINEAR,
        lambda m, x: m.c + m.l(x),
        l=lambda n: nn.Linear(n, 7),
        c=lambda n: torch.randn(1, 7),
    ),
    written(
        "linear(x, W) + c => linear(x, W, c)",
        lambda m, x: m.l(x) + m.c,
        l=lambda n: nn.Linear(n, 6, bias=False),
        c=lambda n: vector(6),
    ),
    written(
        "linear(x, W, b) - c => linear(x, W, b - c)", lambda m, x: m.l(x) - m.c, l=linear, c=six
    ),
    written("linear(x, W) - c => linear(x, W, -c)", lambda m, x: m.l(x) - m.c, l=unbiased, c=six),
    image(
        "conv(x, W, b) - c => conv(x, W, b - c)",
        lambda m, x: m.conv(x) - m.c,
        conv=lambda n: nn.Conv2d(n, 5, 2),
        c=channels,
    ),
    image(
        "conv(x, W) - c => conv(x, W, -c)",
        lambda m, x: m.conv(x) - m.c,
        conv=lambda n: nn.ConvTranspose2d(n, 5, 2, stride=2, bias=False),
        c=channels,
    ),
    *(
        image(CONV, lambda m, x: m.conv(x) + m.c, conv=conv, c=channels)
        for conv in (
            lambda n: nn.Conv2d(n, 5, 2),
            lambda n: nn.Conv2d(n, 5, 3, padding="same"),
            lambda n: nn.ConvTranspose2d(n, 5, 2, stride=2),
        )
    ),
    image(
        "conv(x, W) + c => conv(x, W, c)",
        lambda m, x: m.conv(x) + m.c,
        conv=lambda n: nn.Conv2d(n, 5, 2, bias=False),
        c=channels,
    ),
    written(BIASES, lambda m, x: (torch.tanh(x) + m.b) + m.c, b=vector, c=vector),
    written(BIASES, lambda m, x: m.c + (m.b + x), b=lambda n: torch.randn(1, n), c=vector),
    written(BIASES, lambda m, x: (x + m.b) + m.c, b=vector, c=lambda n: torch.randn(1)),
    trained(lambda n: nn.Conv2d(n, 5, 3), lambda n: averaged(nn.BatchNorm2d(5))),
    trained(lambda n: nn.Conv1d(n, 5, 2), lambda n: nn.BatchNorm1d(5, momentum=0.75)),
    trained(lambda n: nn.ConvTranspose3d(n, 5, 2), lambda n: nn.BatchNorm3d(5, affine=False)),
    trained(lambda n: nn.Linear(n, 5), lambda n: averaged(nn.BatchNorm1d(5))),
    written(NORM, lambda m, x: m.norm(x + 3), norm=lambda n: nn.LayerNorm(n)),
    written(NORM, lambda m, x: m.norm(x - 0.5), norm=lambda n: nn.GroupNorm(1, n)),
    image(NORM, lambda m, x: m.norm(x + 0.5), norm=lambda n: nn.GroupNorm(n, n)),
    image(NORM, lambda m, x: m.norm(x + 2), norm=lambda n: nn.InstanceNorm2d(n, affine=True)),
    *LINEARITY,
    *POOLING,
    written(SCALED, lambda m, x: ((x * 0.3) @ x.T).softmax(-1)),
    image(SCALED, lambda m, x: (x * 0.3 @ x.transpose(2, 3)).view(-1, 16).exp()),
    written("(x / c) @ y => (x @ y) / c", lambda m, x: torch.mm(x / 3, m.w) + 1, w=square),
    written("x @ (y * c) => (x @ y) * c", lambda m, x: (x @ (7 * x).T).softmax(-1)),
    image(
        "x @ (y / c) => (x @ y) / c",
        lambda m, x: torch.bmm(x[:, 0], x[:, 0].mT / 3).softmax(-1),
    ),
    written(ROLLED, lambda m, x: m.norm(x).roll(1, 0), norm=nn.LayerNorm),
    image(ROLLED, lambda m, x: m.norm(x).roll((1, -1), (2, -3)), norm=lambda n: nn.LayerNorm(3)),
    image(
        ROLLED,
        lambda m, x: m.norm(x).reshape(x.shape[0], -1, 2, 2, 3).roll(1, 2),
        norm=lambda n: nn.LayerNorm(3),
    ),
]


def special_input(shape: tuple[int, ...]) -> Tensor:
    """Ordinary numbers and, among them, those that floating-point laws stumble over."""
    x = torch.randn(shape) * 3
    flat = x.view(-1)
    for place, value in zip(torch.randperm(flat.numel()).tolist()[::2], SPECIAL, strict=False):
        flat[place] = value
    return x


def same(left: Tensor, right: Tensor) -> bool:
    """Equal bits, except that a zero may change its sign and a NaN its payload."""
    alike = (left == right) | (left.isnan() & right.isnan())
    return left.shape == right.shape and left.dtype == right.dtype and bool(alike.all())


def test_every_law_has_a_case() -> None:
    assert {case.law for case in CASES} == {rule.name for rule in ALL_RULES}
    assert len(RULE) == len(ALL_RULES), "two laws have the same name"


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.law)
def test_both_sides_agree(case: Case, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    batch, n = size
    module = case.model(n)
    shape = case.shape(batch, n)
    graph = capture(problem_from_module(module, (torch.randn(shape),)))
    after, log = rewrite(graph, ALL_RULES)
    check_graph(after, "rewrite")
    assert case.law in {step.rule for step in log}, f"it did not fire in\n{graph}"

    if all(step.exactness is Exactness.EXACT for step in log):
        for _ in range(5):
            x = special_input(shape)
            assert same(run(graph, module, (x,))[0], run(after, module, (x,))[0])
    module = module.double()
    other_batch = case.shape(batch + 2, n)
    for x in (torch.randn(shape).double(), torch.randn(other_batch).double()):
        left, right = run(graph, module, (x,))[0], run(after, module, (x,))[0]
        torch.testing.assert_close(left, module(x), rtol=0, atol=0)
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def with_values(x: Tensor, values: Sequence[float]) -> Tensor:
    """x with these values somewhere."""
    for place, value in zip(torch.randperm(x.numel()).tolist(), values, strict=False):
        x.view(-1)[place] = value
    return x


def kinds(value: Tensor) -> Tensor:
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()


@pytest.mark.parametrize("case", [*LINEARITY, *POOLING], ids=lambda case: case.law)
def test_infinities_and_nan_land_where_eager_puts_them(case: Case) -> None:
    """Sums of weights of both signs must not turn eager's inf - inf into an infinity."""
    torch.manual_seed(0)
    module, shape = case.model(4).double(), case.shape(3, 4)
    graph = capture(problem_from_module(module, (torch.randn(shape).double(),)))
    after, _ = rewrite(graph, ALL_RULES)
    for values in ((INF,), (-INF,), (NAN,), (INF, -INF), (INF, INF), (INF, NAN)):
        for _ in range(5):
            x = with_values(torch.randn(shape).double(), values)
            left, right = run(graph, module, (x,))[0], run(after, module, (x,))[0]
            assert torch.equal(kinds(left), kinds(right)), (values, left, right)


TRAINED = [case for case in CASES if case.law == BIAS_ASIDE]
AVERAGES = [case for case in CASES if case.law in (SPACE_MEAN, POOL_FIRST)]


def in_both_forms(case: Case) -> tuple[nn.Module, tuple[int, ...], Graph, Graph]:
    """A module and the shape of its input; as it is captured, and averaged in double."""
    torch.manual_seed(0)
    module, shape = case.model(4), case.shape(3, 4)
    graph = capture(problem_from_module(module, (torch.randn(shape),)))
    return module, shape, graph, rewrite(graph, in_double(ALL_RULES))[0]


@pytest.mark.parametrize("case", AVERAGES, ids=lambda case: case.law)
def test_what_is_averaged_in_double_is_the_same(case: Case) -> None:
    module, shape, graph, after = in_both_forms(case)
    check_graph(after, "rewrite")
    if after == graph:
        assert any("the more exact one" in r.why for r in refusals(graph, in_double(ALL_RULES)))
        return
    assert case.law in {step.rule for step in rewrite(graph, in_double(ALL_RULES))[1]}
    assert torch.float64 in {node.type.dtype for node in after}
    for x in (torch.randn(shape), torch.randn(case.shape(5, 4))):
        left, right = run(graph, module, (x,))[0], run(after, module, (x,))[0]
        assert right.dtype == torch.float32
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    wide, x = module.double(), torch.randn(shape).double()
    left, right = run(graph, wide, (x,))[0], run(after, wide, (x,))[0]
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", AVERAGES, ids=lambda case: case.law)
def test_infinities_and_nan_are_no_others_in_double(case: Case) -> None:
    module, shape, graph, after = in_both_forms(case)
    large = torch.finfo(torch.float32).max
    for values in ((INF,), (-INF,), (NAN,), (INF, -INF), (INF, INF), (INF, NAN), (1e36,), (large,)):
        x = with_values(torch.randn(shape), values)
        left, right = run(graph, module, (x,))[0], run(after, module, (x,))[0]
        assert torch.equal(kinds(left), kinds(right)), (values, left, right)


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: str(case.shape(2, 4)))
@pytest.mark.parametrize("special", [0.0, INF, -INF, NAN])
def test_running_statistics_see_the_bias(case: Case, special: float) -> None:
    torch.manual_seed(0)
    module, x = case.model(4).double(), torch.randn(case.shape(5, 4)).double()
    graph = capture(problem_from_module(module, (x,)))
    after, _ = rewrite(graph, ALL_RULES)
    with torch.no_grad():
        module.product.bias[2] += special  # type: ignore[union-attr, index]
    left, right = run(graph, module, (x,)), run(after, module, (x,))
    assert len(left[1]) == 3, "both running statistics, and how many batches there were"
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_equal_numbers_are_exact_without_their_bias() -> None:
    """A mean that is off by a unit in the last place, over sqrt(eps), is off by 300 of them."""
    torch.manual_seed(0)
    module = Written(
        lambda m, x: m.norm(m.conv(x)), conv=nn.Conv2d(3, 24, 3), norm=nn.BatchNorm2d(24)
    ).train()
    with torch.no_grad():
        module.norm.bias.normal_()  # type: ignore[union-attr, operator]
    x = torch.zeros(3, 3, 19, 17)
    after, log = rewrite(capture(problem_from_module(module, (x,))), ALL_RULES)
    assert BIAS_ASIDE in {step.rule for step in log}
    result = run(after, module, (x,))[0]
    assert torch.equal(result, module.norm.bias[:, None, None].expand_as(result))  # type: ignore[union-attr, index]


def twice_used(m: Any, x: Tensor) -> Any:
    y = x + 1.0
    return y + 2.0, torch.exp(y)


def also_output(m: Any, x: Tensor) -> Any:
    y = m.l(x)
    return y, y + m.c


def with_indices(m: Any, x: Tensor) -> Any:
    values, indices = torch.max(torch.sin(x).unsqueeze(1), 1)
    return values, indices


def padded_pool(m: Any, x: Tensor) -> Tensor:
    return F.avg_pool1d(m.l(x).unsqueeze(1) + 2, 3, padding=1)


LINEAR_PARTS = {"l": lambda n: nn.Linear(n, 6), "c": lambda n: vector(6)}

# A law, a program that looks as if it obeyed it, and the reason given (None: not even a near miss).
LOOK_ALIKES: list[tuple[str, Forward, dict[str, Callable[[int], Any]], str | None]] = [
    ("x * 1 => x", lambda m, x: x * 1, {}, "the caller must get a fresh tensor, but would get x"),
    ("x * 1 => x", lambda m, x: x.argsort() * 1.0, {}, "x is int64, but the result is float32"),
    ("x / 1 => x", lambda m, x: x.argsort() / 1, {}, "x is int64, but the result is float32"),
    ("x + x => 2 * x", lambda m, x: torch.add(x, x, alpha=2), {}, "alpha is 2, not 1"),
    ("x + x => 2 * x", lambda m, x: x + x.sin(), {}, None),
    ("x + x => 2 * x", lambda m, x: x.argsort() + x.argsort(), {}, None),
    ("x + x => 2 * x", lambda m, x: (y := x.argsort()) + y, {}, "is int64, not floating-point"),
    (EXTREME, lambda m, x: (x + m.c).amax(1), {"c": vector}, "is known only at a call"),
    (EXTREME, lambda m, x: (x * -2).amax(1), {}, "does not keep the order of numbers"),
    (SMOOTH_EXTREME, lambda m, x: (y := x.tanh()).amax(1, keepdim=True) * y, {}, "also used by"),
    (SMOOTH_VALUES, lambda m, x: torch.max(x.tanh(), 1), {}, "also used by"),
    (SHIFT, twice_used, {}, "add is also used by exp"),
    (SHIFT, lambda m, x: (x + 12582912.0) - 12582912.0, {}, "they round x on purpose"),
    (SHIFT, lambda m, x: (x + float("inf")) + 1, {}, "the shift inf is not in the range"),
    (SHIFT, lambda m, x: (x.argsort() + 1) + 2, {}, "is int64, not floating-point"),
    (SHIFT, lambda m, x: (x.argsort() + 1) + 2.5, {}, "is int64, but the result is float32"),
    (SHIFT, lambda m, x: 1 - (x + 2), {}, None),
    (SCALE, lambda m, x: (x * 1e30) * 1e-30, {}, "the factor 1e+30 is not in the range"),
    (SCALE, lambda m, x: (x * 1e18) * 1e18, {}, "the folded factor 1e+36 is not in the range"),
    (SCALE, lambda m, x: (x * 0) * 2, {}, "the factor 0 is not in the range"),
    (SCALE, lambda m, x: (x * float("nan")) * 2, {}, "the factor nan is not in the range"),
    (SCALE, lambda m, x: (x * x.shape[0]) * 2, {}, None),
    ("(x * a) / b => x * (a / b)", lambda m, x: (x * 2) / 0, {}, "the factor 0 is not"),
    (
        "(x / a) / b => x / (a * b)",
        lambda m, x: torch.div(x / 2, 3, rounding_mode="floor"),
        {},
        None,
    ),
    (FOLD, lambda m, x: F.relu(x).clamp(m.c, None), {"c": vector}, "is %c, not a number"),
    (FOLD, lambda m, x: F.relu(x).clamp(min=float("nan")), {}, "a bound of clamp is NaN"),
    (FOLD, lambda m, x: F.relu(x.argsort()).clamp(0, 3), {}, "is int64, not floating-point"),
    (ABSORB, lambda m, x: ((y := F.relu(x)), y.clamp(-1)), {}, "but would get result 0 itself"),
    (LEAKY, lambda m, x: F.leaky_relu(F.hardtanh(x), 0.1), {}, "hardtanh can be negative"),
    (LEAKY, lambda m, x: F.leaky_relu(F.relu(x), float("inf")), {}, "the slope is inf"),
    (AXES, lambda m, x: x.sum(1), {}, None),
    (AXES, lambda m, x: x.unsqueeze(1).sum(1), {}, "the caller must get a fresh tensor"),
    (AXES, lambda m, x: x.argsort().unsqueeze(1).sum(1), {}, "is int64, not floating-point"),
    (AXES, lambda m, x: x.sin().unsqueeze(1).sum(1, dtype=torch.float64), {}, "is float32, but"),
    (AXES, lambda m, x: x.sin().unsqueeze(1).softmax(1), {}, None),
    (INDEXED, with_indices, {}, "max_"),
    (INDEXED, lambda m, x: torch.max(x.sin().unsqueeze(1), 1)[1], {}, None),
    (LINEAR, lambda m, x: torch.add(m.l(x), m.c, alpha=2), LINEAR_PARTS, "alpha is 2, not 1"),
    ("linear(x, W, b) - c => linear(x, W, b - c)", lambda m, x: m.c - m.l(x), LINEAR_PARTS, None),
    (SHIFT_PAST, padded_pool, LINEAR_PARTS, "pads or rounds up"),
    (ADDED_PAST, lambda m, x: (m.l(x) / 2 + m.c).sum(0), LINEAR_PARTS, "goes over the batch"),
    (ADDED_PAST, lambda m, x: (m.l(x).tanh() + m.c).sum(1), LINEAR_PARTS, "is no product"),
    (ADDED_PAST, lambda m, x: (m.l(x) * x[:, :1] + m.c).sum(1), LINEAR_PARTS, "is no product"),
    (
        ADDED_PAST,
        lambda m, x: F.avg_pool1d((m.l(x) / 2).unsqueeze(1) + m.c, 2),
        LINEAR_PARTS,
        "several numbers for one sum",
    ),
    (GAIN_PAST, lambda m, x: (m.b[None] * m.c).sum(1) + x, {"b": vector, "c": one}, "no product"),
    (GAIN_PAST, lambda m, x: (m.l(x) * m.c).sum(1), LINEAR_PARTS, "several numbers for one sum"),
    (
        GAIN_PAST,
        lambda m, x: (m.l(x) * m.c).sum(1),
        LINEAR_PARTS | {"c": lambda n: torch.randn(2, 1, 1)},
        "c enlarges",
    ),
    (GAINS, lambda m, x: (m.l(x[:1]) * m.c).sum(1), LINEAR_PARTS, "for a single row"),
    (
        GAINS,
        lambda m, x: (m.l(x) * m.c).sum(1),
        LINEAR_PARTS | {"c": one},
        "not one number for each of the 6 features",
    ),
    (GAINS, lambda m, x: (m.l(x) * x[:, :1]).sum(1), LINEAR_PARTS, None),
    (GAINS, lambda m, x: (m.l(x) * m.c).sum(0), LINEAR_PARTS, "is not only summed"),
    (GAINS, lambda m, x: (m.l(x) * m.c + x[:, :1]).sum(1), LINEAR_PARTS, "is not only summed"),
    (GAINS, lambda m, x: (y := m.l(x) * m.c).sum(1, True) + y, LINEAR_PARTS, "is not only summed"),
    (GAINS, lambda m, x: (m.l(x) * m.c + 2).sum((0, 1)), LINEAR_PARTS, "goes over the batch"),
    (GAINS, lambda m, x: (y := m.l(x) * m.c, y.sum(1)), LINEAR_PARTS, "is not only summed"),
    (LINEAR, also_output, LINEAR_PARTS, "l is also a result of the model"),
    (
        LINEAR,
        lambda m, x: m.l(x) + m.c,
        LINEAR_PARTS | {"c": lambda n: torch.randn(1)},
        "is not one number for each of the 6 channels",
    ),
    (
        LINEAR,
        lambda m, x: m.l(x) + m.c,
        LINEAR_PARTS | {"c": lambda n: torch.randn(1, 6, 1, 1)},
        "c (1, 6, 1, 1) enlarges",
    ),
    (
        LINEAR,
        lambda m, x: m.l(x) + m.c,
        LINEAR_PARTS | {"c": lambda n: torch.randn(6).double()},
        "but the result is float64",
    ),
    (LINEAR, lambda m, x: m.l(x) + x[:, :1], LINEAR_PARTS, None),
    (
        BIASES,
        lambda m, x: (x[:3] + m.b) + m.c,
        {"b": lambda n: torch.randn(3, n), "c": vector},
        "has the batch dimension of x",
    ),
    (
        BIASES,
        lambda m, x: (x + m.b) + m.c,
        {"b": lambda n: torch.randn(4, 1, n), "c": vector},
        "b and c enlarge x",
    ),
    (
        BIASES,
        lambda m, x: (x.unsqueeze(2) * m.c + m.b) + m.c,
        {"b": lambda n: torch.randn(n, 1), "c": lambda n: torch.randn(1, 3)},
        "lie along different axes",
    ),
    (BIASES, lambda m, x: (x + x.sin()) + x.cos(), {}, None),
    (BIASES, lambda m, x: torch.add(x + m.b, m.b, alpha=3), {"b": vector}, "alpha is 3, not 1"),
    (
        NORM,
        lambda m, x: m.norm(x + m.b),
        {"norm": nn.LayerNorm, "b": vector},
        "b varies along the normalised axis 1, so it does not cancel",
    ),
    (
        NORM,
        lambda m, x: m.norm(x + m.b),
        {"norm": nn.LayerNorm, "b": lambda n: torch.randn(1)},
        "a NaN or infinity stored in b would vanish",
    ),
    (NORM, lambda m, x: m.norm(x + float("inf")), {"norm": nn.LayerNorm}, "the shift inf is not"),
    (NORM, lambda m, x: m.norm(x + 1), {"norm": nn.BatchNorm1d}, "running statistics"),
    (
        NORM,
        lambda m, x: m.norm((x + 1).unsqueeze(0) + 1),
        {"norm": lambda n: nn.InstanceNorm1d(3, track_running_stats=True).eval()},
        "running statistics",
    ),
    (NORM, lambda m, x: m.norm(2 - x), {"norm": nn.LayerNorm}, None),
    (SCALED, lambda m, x: (x * 0.3) @ x.T, {}, "the caller reads matmul, so scaling it would be"),
    (SCALED, lambda m, x: (x * 0.3) @ x.T @ x, {}, "matmul reads matmul, so scaling it would be"),
    (SCALED, lambda m, x: ((x * 1e-4) @ x.T).exp(), {}, "the factor 0.0001 is so far from 1"),
    (SCALED, lambda m, x: ((x * 0) @ x.T).exp(), {}, "the factor 0 is so far from 1"),
    (SCALED, lambda m, x: ((x * x) @ x.T).exp(), {}, None),
    (SCALED, lambda m, x: ((y := x * 0.3) @ y.T).exp(), {}, "mul is also used by"),
    (SCALED, lambda m, x: ((x.half() * 0.3) @ x.half().T).exp(), {}, "the law is for float32"),
    (ROLLED, lambda m, x: m.norm(x).roll(1), {"norm": nn.LayerNorm}, "all elements as one row"),
    (ROLLED, lambda m, x: m.norm(x).roll(1, 1), {"norm": nn.LayerNorm}, "axis 1, which is"),
    (ROLLED, lambda m, x: m.norm(x).view(-1).roll(1, 0), {"norm": nn.LayerNorm}, "other rows"),
    (ROLLED, lambda m, x: (m.norm(x) + 1).roll(1, 0), {"norm": nn.LayerNorm}, None),
]


@pytest.mark.parametrize(
    ("law", "forward", "parts", "reason"),
    LOOK_ALIKES,
    ids=[f"{law}: {reason or 'no match'}" for law, _, _, reason in LOOK_ALIKES],
)
def test_look_alikes_are_left_alone(
    law: str, forward: Forward, parts: dict[str, Callable[[int], Any]], reason: str | None
) -> None:
    torch.manual_seed(0)
    module = Written(forward, **{name: make(5) for name, make in parts.items()})
    graph = capture(problem_from_module(module, (torch.randn(3, 5),)))
    after, log = rewrite(graph, [RULE[law]])
    assert (after, log) == (graph, ())
    reasons = [refusal.why for refusal in refusals(graph, [RULE[law]])]
    if reason is None:
        assert reasons == []
    else:
        assert any(reason in why for why in reasons), reasons


def is_returned_too(m: Any, x: Tensor) -> Any:
    y = m.conv(x)
    return y, y.mean((2, 3))


# The same for maps of 6 channels over 12 x 9 places.
SPACE_LOOK_ALIKES: list[tuple[str, Forward, dict[str, Any], str]] = [
    (SPACE_MEAN, is_returned_too, {}, "conv is also a result of the model"),
    (SPACE_MEAN, lambda m, x: m.conv(x[:, :, :3, :3]).mean((2, 3)), {}, "has 9 places only"),
    (
        SPACE_MEAN,
        lambda m, x: m.conv(x).mean((2, 3)),
        {"conv": nn.Conv2d(6, 6, 3, groups=6)},
        "has groups",
    ),
    (
        SPACE_MEAN,
        lambda m, x: m.conv(x).mean((2, 3)),
        {"conv": nn.Conv2d(6, 5, 2, padding="same")},
        "not the same on both sides",
    ),
    (
        SPACE_MEAN,
        lambda m, x: m.conv(x.half()).mean((2, 3)),
        {"conv": nn.Conv2d(6, 5, 3).half()},
        "float16 would be rounded",
    ),
    (POOL_FIRST, lambda m, x: F.avg_pool2d(m.conv(x), 3, 1), {}, "the windows of the pool overlap"),
    (POOL_FIRST, lambda m, x: F.avg_pool2d(m.conv(x), 2, padding=1), {}, "pads or rounds"),
    (
        POOL_FIRST,
        lambda m, x: F.avg_pool2d(m.conv(x), 2),
        {"conv": nn.Conv2d(6, 8, 5, padding=2)},
        "pads by more than half",
    ),
    (
        POOL_FIRST,
        lambda m, x: F.avg_pool2d(m.conv(x), 2),
        {"conv": nn.Conv2d(6, 2, 3)},
        "read 6 channels instead of 2",
    ),
    (FACTOR_PAST, lambda m, x: (x.sin() * 2).mean((2, 3)), {}, "no product that could be saved"),
    (FACTOR_PAST, lambda m, x: (m.conv(x) * 0).mean((2, 3)), {}, "the factor 0 is not in"),
    (TWO_MAX, lambda m, x: F.max_pool2d(F.max_pool2d(x, 2, 1), 2), {}, "overlap or leave gaps"),
    (TWO_MAX, lambda m, x: F.max_pool2d(F.max_pool2d(x, 2), 2, padding=1), {}, "pads or rounds"),
    (MEAN_POOL, lambda m, x: F.avg_pool2d(x, 5).mean((2, 3)), {}, "do not cover each place once"),
    (CLIPS, lambda m, x: F.max_pool2d(x * -2, 2), {}, "does not keep the order of numbers"),
    (CLIPS, lambda m, x: F.max_pool2d(F.leaky_relu(x, 0.0), 2), {}, "does not keep the order"),
    (CLIPS, lambda m, x: F.max_pool2d(x * m.c, 2), {"c": torch.ones(6, 1, 1)}, "the sign of %c"),
    (CLIPS, lambda m, x: F.max_pool2d(x + x.sin(), 2), {}, "varies inside of a window"),
    (CLIPS, lambda m, x: F.max_pool2d(F.relu(x), 3, 1), {}, "leaves as many places"),
    (CLIPS, lambda m, x: F.max_pool2d(F.relu(x), 2, dilation=2), {}, "a dilated window"),
    (CLIPS, lambda m, x: F.max_pool2d(F.relu(F.gelu(x)), 2), {}, "free inside the fused kernel"),
    (INCREASING, lambda m, x: F.max_pool2d(F.softplus(x, 1, 1), 2), {}, "falls at its threshold"),
]


@pytest.mark.parametrize(
    ("law", "forward", "parts", "reason"),
    SPACE_LOOK_ALIKES,
    ids=[f"{law}: {reason}" for law, _, _, reason in SPACE_LOOK_ALIKES],
)
def test_look_alikes_over_a_space_are_left_alone(
    law: str, forward: Forward, parts: dict[str, Any], reason: str
) -> None:
    parts = {"conv": nn.Conv2d(6, 6, 3, padding=1)} | parts
    graph = capture(problem_from_module(Written(forward, **parts), (torch.randn(3, 6, 12, 9),)))
    assert rewrite(graph, [RULE[law]]) == (graph, ())
    reasons = [refusal.why for refusal in refusals(graph, [RULE[law]])]
    assert any(reason in why for why in reasons), reasons


def test_a_batch_norm_that_trains_keeps_its_place() -> None:
    """Its statistics are of the very values that the mean would skip."""
    module = Written(lambda m, x: m.norm(m.c(x)).mean((2, 3)), c=conv(4), norm=nn.BatchNorm2d(5))
    graph = capture(problem_from_module(module.train(), (torch.randn(3, 4, 8, 6),)))
    assert NORM_PAST not in {step.rule for step in rewrite(graph, ALL_RULES)[1]}


def test_the_norm_law_holds_for_a_group_of_one_channel_only_along_space() -> None:
    """A per-channel parameter cancels before a norm over one channel, but varies within a group."""
    parts = {"b": torch.randn(6, 1, 1)}
    reasons = []
    for groups in (6, 2):
        module = Written(lambda m, x: m.norm(x + m.b), norm=nn.GroupNorm(groups, 6), **parts)
        graph = capture(problem_from_module(module, (torch.randn(3, 6, 2, 2),)))
        reasons += [refusal.why for refusal in refusals(graph, [RULE[NORM]])]
    assert "would vanish" in reasons[0]
    assert "varies along the normalised axis 1" in reasons[1]


def test_a_parameter_that_changes_after_the_rewrite_still_counts() -> None:
    module = Written(lambda m, x: m.l(x) + m.c, l=nn.Linear(5, 7), c=torch.randn(7))
    graph = capture(problem_from_module(module, (torch.randn(3, 5),)))
    after, _ = rewrite(graph, ALL_RULES)
    with torch.no_grad():
        module.c.fill_(3)
        module.l.bias.mul_(-1)
    x = torch.randn(4, 5)
    torch.testing.assert_close(run(after, module, (x,))[0], module(x))
