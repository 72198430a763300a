"""The judge of torch's databases catches what is wrong, and their samples are always the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from databases import sweep, table
from databases.cases import Entry, InPlace, features, picked, samples
from databases.judge import Bench
from databases.layouts import LAYOUTS
from torch import Tensor, nn

W = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """A product that is counted, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.clone())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return x @ self.weight, x.t()


def made(forward: Callable[[Any, Tensor], Any]) -> nn.Module:
    return type("Candidate", (Model,), {"forward": forward})()


def counted(module: Any, x: Tensor) -> None:
    module.calls += 1


def without_sign(x: Tensor) -> Tensor:
    """What a kernel makes of a lazily negated tensor whose memory it reads."""
    return torch._neg_view(x) if x.is_neg() else x


def raising(module: Any, x: Tensor) -> Any:
    raise ValueError("no")


WRONG = {
    "inaccurate": lambda m, x: (counted(m, x), (x @ m.weight * (1 + 1e-5), x.t()))[1],
    "another order": lambda m, x: (counted(m, x), ((x @ m.weight).t().contiguous().t(), x.t()))[1],
    "a list": lambda m, x: (counted(m, x), [x @ m.weight, x.t()])[1],
    "a copy": lambda m, x: (counted(m, x), (x @ m.weight, x.clone().t()))[1],
    "no gradient": lambda m, x: (counted(m, x), (x @ m.weight.detach(), x.t()))[1],
    "cut off": lambda m, x: (counted(m, x), ((x @ m.weight).detach(), x.t()))[1],
    "not counted": lambda m, x: (x @ m.weight, x.t()),
    "memory": lambda m, x: (counted(m, x), (without_sign(x) @ m.weight, x.t()))[1],
    "written": lambda m, x: (counted(m, x), (x @ m.weight, x.detach().add_(1e-3).t()))[1],
    "raises": raising,
}


def judged(candidate: nn.Module, x: Tensor) -> Any:
    return Bench(Model(), candidate, ((x,), {}), frozenset()).verdict(0)


def test_a_right_candidate_is_right() -> None:
    verdict = judged(made(lambda m, x: Model.forward(m, x)), torch.randn(3, 4))
    assert verdict.outcome == "right"
    assert verdict.layouts == dict.fromkeys(LAYOUTS, "right")


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_candidate_is_caught(what: str) -> None:
    verdict = judged(made(WRONG[what]), torch.randn(3, 4))
    assert verdict.outcome == "wrong", verdict
    only = {"memory": {"negated"}}.get(what)
    wrong = {layout for layout, said in verdict.layouts.items() if said.startswith("wrong")}
    assert wrong == only if only else wrong


def test_what_eager_refuses_has_to_be_refused() -> None:
    ours = made(lambda m, x: (counted(m, x), (x.new_zeros(3, 5), x.t()))[1])
    assert judged(ours, torch.randn(3, 7)).outcome == "wrong"


def test_samples_are_always_the_same() -> None:
    entry = Entry.parse("op add float32 eval")
    first, again = (samples(entry, "cpu", 2) for _ in range(2))
    assert isinstance(first[0].module, InPlace) and len(first) == 3
    for a, b in zip(first, again, strict=True):
        assert a.about == b.about
        pairs = zip(a.args, b.args, strict=True)
        assert all(torch.equal(x, y) for x, y in pairs if isinstance(x, Tensor))


def test_samples_differ_in_structure() -> None:
    calls = [
        features((torch.ones(2), 1), {}),
        features((torch.ones(3), 2), {}),
        features((torch.ones(2, 3), 1), {"dim": 0}),
        features((torch.ones(3), 2), {"dim": 0}),
    ]
    assert picked(calls, 3) == [0, 2]


def test_the_table_names_every_reason() -> None:
    def record(outcome: str, why: str, **layouts: str) -> dict[str, Any]:
        verdict = {"outcome": outcome, "why": why, "kernels": 1, "layouts": layouts}
        return {"entry": "op add float32 eval", "sample": 0, "verdict": verdict}

    text = table.document(
        [
            record("right", "", plain="right", transposed="fell back; args[0] is another"),
            record("refused", "It has 3 axes."),
            record("refused", "It has 4 axes."),
        ],
        "Found here.",
    )
    assert "| 2 | It has N axes. | add |" in text
    assert "| 1 | an input is another |" in text
    assert "| op | float32 | 1 | 0 | 0 | 2 | 0 | 0 |" in text


DYING = """
import json, os, sys
for line in sys.stdin:
    for number in range(json.loads(line)["done"], 3):
        print(json.dumps({"sample": number, "about": ""}), flush=True)
        if number == 1:
            os.abort()
        print(json.dumps({"sample": number, "verdict": {"outcome": "right"}}), flush=True)
    print(json.dumps({"finished": True}), flush=True)
"""


def test_a_crash_is_a_verdict_about_one_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    monkeypatch.setattr(sweep, "SCRIPT", script)
    found: list[Any] = []
    entries = [Entry("op", name, "float32", "eval") for name in ("add", "mul")]
    sweep.sweep(entries, 1, [], found.append)
    assert [r["verdict"]["outcome"] for r in found] == ["right", "crashed", "right"] * 2
    assert "SIGABRT" in found[1]["verdict"]["why"]
