"""Attention in one kernel on a CPU: all forms in one emitted model, against float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import checking
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import problem_from_module
from kernelwright.verify.compare import same_bits

INF, NAN = math.inf, math.nan
EPS = torch.finfo(torch.float32).eps
BATCH, HEADS = 3, 3
Attention = Callable[["Form", Tensor, Tensor, Tensor], Tensor]


def plain(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def biased(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2 + m.bias).softmax(-1) @ v


def masked(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.2).masked_fill(~m.seen, -INF).softmax(-1) @ v


def capped(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid((5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v) * 2


def by_torch(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def torch_masked(m: Form, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m.seen)


@dataclass(frozen=True)
class Spec:
    """An attention over so many queries and keys."""

    attention: Attention
    rows: int
    keys: int
    depth: int
    columns: int


SPECS = {
    "one": Spec(plain, 1, 9, 8, 8),
    "few": Spec(plain, 5, 5, 8, 8),
    "wide": Spec(plain, 49, 70, 64, 112),
    "long": Spec(plain, 100, 417, 64, 64),
    "odd": Spec(biased, 25, 131, 19, 7),
    "window": Spec(biased, 49, 49, 32, 32),
    "masked": Spec(masked, 33, 100, 16, 40),
    "capped": Spec(capped, 13, 65, 40, 16),
    "torch": Spec(by_torch, 64, 64, 64, 64),
    "causal": Spec(causal, 200, 200, 24, 24),
    "causal_short": Spec(causal, 70, 30, 16, 16),
    "torch_masked": Spec(torch_masked, 50, 40, 32, 32),
}


class Form(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.bias = nn.Parameter(torch.randn(HEADS, spec.rows, spec.keys))
        seen = torch.ones(spec.rows, spec.keys, dtype=torch.bool).tril(spec.keys - spec.rows)
        self.register_buffer("seen", seen)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self.spec.attention(self, q, k, v).transpose(1, 2)


class Forms(nn.Module):
    """Every form over inputs of its own; one file, so that the compiler is called once."""

    def __init__(self) -> None:
        super().__init__()
        self.forms = nn.ModuleDict({name: Form(spec) for name, spec in SPECS.items()})

    def forward(self, given: dict[str, tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        return {name: form(*given[name]) for name, form in self.forms.items()}


def inputs(batch: int = BATCH) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    return {
        name: (
            torch.randn(batch, s.rows, HEADS, s.depth),
            torch.randn(batch, s.keys, HEADS, s.depth),
            torch.randn(batch, s.keys, HEADS, s.columns),
        )
        for name, s in SPECS.items()
    }


@dataclass(frozen=True)
class Subject:
    eager: nn.Module
    made: Compiled
    fast: Any

    def fresh(self) -> tuple[nn.Module, nn.Module]:
        """Both with weights of their own, to be changed."""
        eager = copy.deepcopy(self.eager)
        fast = copy.deepcopy(self.fast)
        return eager, fast


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.manual_seed(0)
    eager = Forms().eval()
    made = compile_problem(problem_from_module(eager, (inputs(),)), target="cpu", policy=ALWAYS)
    kinds = [r.kind for r in made.planned.regions]
    assert kinds == ["attention"] * len(SPECS)
    return Subject(eager, made, made.instantiate())


def doubled(given: Any) -> Any:
    return {name: tuple(x.double() for x in three) for name, three in given.items()}


def check_kinds(name: str, ours: Tensor, theirs: Tensor) -> None:
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(ours), kind(theirs)), f"{name}: {kind.__name__}"


@pytest.mark.parametrize("scale", [1.0, 4.0, 1e-4])
@pytest.mark.parametrize("batch", [BATCH, 1, 7])
def test_values(subject: Subject, batch: int, scale: float) -> None:
    """As exact as eager, at sizes that no tile divides, for flat and for sharp softmaxes."""
    given = {name: (q * scale, k, v) for name, (q, k, v) in inputs(batch).items()}
    ours, theirs = checking.run(subject.fast, (given,)), checking.run(subject.eager, (given,))
    exact = checking.run(copy.deepcopy(subject.eager).double(), (doubled(given),))
    for name in SPECS:
        norm = exact[name].norm()
        errors = [float((y[name].double() - exact[name]).norm() / norm) for y in (ours, theirs)]
        assert errors[0] <= max(1.2 * errors[1], 2 * EPS), f"{name}: {errors}"
    assert not subject.fast.fallbacks


def test_threads_change_nothing(subject: Subject) -> None:
    given, before = inputs(), torch.get_num_threads()
    whole = checking.run(subject.fast, (given,))
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            again = checking.run(subject.fast, (given,))
            assert all(same_bits(again[name], whole[name]) for name in SPECS)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("number", [NAN, INF, -INF, 3e38, 1e-38])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["query", "key", "value"])
def test_hard_numbers(subject: Subject, place: int, number: float) -> None:
    """One number in one head; everywhere else the results stay what they were."""
    given = inputs()
    before = checking.run(subject.fast, (given,))
    for name in SPECS:
        given[name][place][1, 0, 1, 2] = number
    ours, theirs = checking.run(subject.fast, (given,)), checking.run(subject.eager, (given,))
    for name in SPECS:
        if "causal" not in name or place == 0:  # a key that nobody looks at makes no NaN
            check_kinds(name, ours[name], theirs[name])
            finite = torch.isfinite(theirs[name])
            torch.testing.assert_close(
                ours[name][finite], theirs[name][finite], rtol=1e-4, atol=1e-4
            )
        assert same_bits(ours[name][[0, 2]], before[name][[0, 2]])


def test_rows_without_a_key(subject: Subject) -> None:
    """By hand they are NaN, of torch's own attention zero."""
    eager, fast = subject.fresh()
    for model in (eager, fast):
        for name in ("masked", "torch_masked"):
            model.get_buffer(f"forms.{name}.seen")[4] = False
    given = inputs()
    ours, theirs = checking.run(fast, (given,)), checking.run(eager, (given,))
    for name in ("masked", "torch_masked"):
        check_kinds(name, ours[name], theirs[name])
    assert torch.isnan(ours["masked"][:, 4]).all()
    assert (ours["torch_masked"][:, 4] == 0).all()


def test_scores_that_are_infinite(subject: Subject) -> None:
    """A bias of -inf hides a key; one of +inf makes its row NaN."""
    eager, fast = subject.fresh()
    for model in (eager, fast):
        bias = model.get_parameter("forms.window.bias").data
        bias[1, 5, 7], bias[0, :, 3] = INF, -INF
    given = inputs()
    ours, theirs = checking.run(fast, (given,))["window"], checking.run(eager, (given,))["window"]
    check_kinds("window", ours, theirs)
    assert torch.isnan(ours[:, 5, 1]).all() and torch.isfinite(ours[:, :, 0]).all()
