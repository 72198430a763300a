"""The planning loop: what is found wrong with a plan binds the next one, is said, and ends."""

from __future__ import annotations

import itertools

import checking
import pytest

from kernelwright import spec
from kernelwright.lower.convolution import conv_time
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import WHERE_IT_PAYS, loop
from kernelwright.plan.constraints import (
    Alone,
    Called,
    Constraints,
    CopiesInSecret,
    NeedsSizes,
    NoTile,
    PoolsFirst,
)
from kernelwright.plan.context import Context
from kernelwright.plan.layouts import Layout
from kernelwright.plan.reasons import Code, Refusal, reason
from kernelwright.problem import load_problem
from kernelwright.targets import target_for

WHY = reason(Code.AGAIN)


def planned(name: str, target: str) -> Compiled:
    path = next(p for p in checking.MODELS if p.stem == name)
    return compile_problem(load_problem(path, "cpu"), target=target)


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("averages_of_convolutions", "sm_90", "the average pool is better taken first, by a law"),
        ("averages_of_convolutions", "x86_64", "plane_2: its order is chosen again; channels firs"),
        ("window_attention", "cpu", "a step would copy this in secret"),
    ],
)
def test_what_was_decided_again_is_said(name: str, target: str, said: str) -> None:
    compiled = planned(name, target)
    assert said in str(compiled)
    assert any(said in finding for finding in compiled.to_json()["again"])


def test_a_plan_without_findings_is_made_once() -> None:
    reported: dict[str, str] = {}
    path = next(p for p in checking.MODELS if p.stem == "linear_relu_linear")
    compiled = compile_problem(load_problem(path, "cpu"), reported.__setitem__, target="sm_90")
    assert compiled.again == ()
    assert "times" not in reported["plan"]


def test_the_loop_ends_even_if_something_is_always_found(monkeypatch: pytest.MonkeyPatch) -> None:
    primitives = planned("linear_relu_linear", "cpu").primitives
    context = Context(target_for("cpu"), "highest", 8, WHERE_IT_PAYS, conv_time)
    numbers = itertools.count()
    monkeypatch.setattr(loop, "criticise", lambda *args: (Alone(f"v{next(numbers)}", WHY),))
    plan = loop.plan_graph(primitives, context, {})
    assert len(plan.again) == loop.MOST_PLANS
    spec.check_plan(plan)


def test_a_finding_keeps_what_it_does_not_concern() -> None:
    refusal = Refusal("conv2d", "model.py:1", WHY)
    layout = Layout(False, Code.FIRST_FASTER, (("gain", 1.0), ("cost", 2.0)))
    known = Constraints(held=frozenset({1}))
    for finding in (
        Called("a", WHY, layout),
        CopiesInSecret("v", WHY, ()),
        NoTile("b", WHY, refusal),
        Alone("c", WHY),
    ):
        known |= finding
    assert known.left == {"b"} and known.whole == {"c"}
    assert known.stored == ((),) and known.called == {"a"}

    turned = known | Called("d", WHY, layout)  # another graph, of which nothing is known yet
    assert turned == Constraints(
        held=frozenset({1}),
        layouts=(("a", layout), ("d", layout)),
        called=frozenset({"a", "d"}),
    )
    sized = known | NeedsSizes("x", WHY, frozenset({0}))
    assert sized == Constraints(held=frozenset({0, 1}))
    assert known | PoolsFirst("conv", WHY, frozenset({"conv"})) == Constraints(frozenset({"conv"}))
