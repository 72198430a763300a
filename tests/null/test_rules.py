"""Both sides of every law, run and compared: one row of CASES a law, and every law has a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.capture import capture
from kernelwright.interpret import run
from kernelwright.pattern import Exactness, refusals, rewrite
from kernelwright.problem import problem_from_module
from kernelwright.rules import ALL_RULES
from kernelwright.spec import check_graph

Tensor = torch.Tensor
Forward = Callable[..., Any]
SIZES = ((3, 5), (7, 1))
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
SCALED = "(x * c) @ y => (x @ y) * c"
ROLLED = "roll(layer_norm(x)) => layer_norm(roll(x))"


def vector(n: int) -> Tensor:
    return torch.randn(n)


def square(n: int) -> Tensor:
    return torch.randn(n, n)


def channels(n: int) -> Tensor:
    return torch.randn(5, 1, 1)


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
    written(NORM, lambda m, x: m.norm(x + 3), norm=lambda n: nn.LayerNorm(n)),
    written(NORM, lambda m, x: m.norm(x - 0.5), norm=lambda n: nn.GroupNorm(1, n)),
    image(NORM, lambda m, x: m.norm(x + 0.5), norm=lambda n: nn.GroupNorm(n, n)),
    image(NORM, lambda m, x: m.norm(x + 2), norm=lambda n: nn.InstanceNorm2d(n, affine=True)),
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


def twice_used(m: Any, x: Tensor) -> Any:
    y = x + 1.0
    return y + 2.0, torch.exp(y)


def also_output(m: Any, x: Tensor) -> Any:
    y = m.l(x)
    return y, y + m.c


def with_indices(m: Any, x: Tensor) -> Any:
    values, indices = torch.max(torch.sin(x).unsqueeze(1), 1)
    return values, indices


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
