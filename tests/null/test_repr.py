"""Results in a console and in a notebook: one short line, and tables in which all is escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.bench import Timing, Timings
from kernelwright.report.outcome import Outcome
from kernelwright.verify.certificate import Certificate, Check

EVIL = "<script>alert('&')</script>"


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.relu(x) * 2, 0)


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    compiled = kernelwright.explain(Net(), (torch.randn(4, 8),))
    checks = (Check("oracle", False, EVIL, 1e-3, 1e-7, 1e-6), Check(EVIL, None, "does not apply"))
    certificate = Certificate(EVIL, "new.py", "cpu", "highest", checks, weak=(EVIL,))
    rows = (Timing("eager", 1.0, 0.9, 1.1, 1.0, 5), Timing("candidate", 2.0, 1.9, 2.1, 2.0, 5))
    rows += (Timing("compile", note=EVIL),)
    timings = Timings(
        EVIL, "new.py", "cpu", "2", "highest", rows, None, "", True, (EVIL,), {"input": (4, 8)}
    )
    return {
        "Compiled": compiled,
        "Certificate": certificate,
        "Timings": timings,
        "Outcome": Outcome(compiled, Path(EVIL.replace("/", "")), certificate, timings),
    }


NAMES = ["Compiled", "Certificate", "Timings", "Outcome"]


@pytest.mark.parametrize("name", NAMES)
def test_repr_is_one_short_line(results: dict[str, object], name: str) -> None:
    text = repr(results[name])
    assert text.startswith(f"{name}(") and "\n" not in text and len(text) <= 160


def test_what_the_lines_say(results: dict[str, object]) -> None:
    assert repr(results["Timings"]) == "Timings(eager 1 ms, candidate 2 ms, NOT VALID)"
    assert repr(results["Certificate"]) == "Certificate(FAILED: 1 of 2 checks (oracle))"
    assert "1 kernels" in repr(results["Compiled"])


def test_printing_stays_long(results: dict[str, object]) -> None:
    assert "FAIL  oracle" in str(results["Certificate"])
    assert "cumsum" in str(results["Compiled"])
    assert "candidate" in str(results["Timings"]) and "NOT VALID" in str(results["Timings"])


class Balanced(HTMLParser):
    """Collects the tags, and fails on one that is not closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_tables_with_everything_escaped(
    results: dict[str, object], name: str
) -> None:
    html = results[name]._repr_html_()  # type: ignore[attr-defined]
    reader = Balanced()
    reader.feed(html)
    assert not reader.open and {"table", "tr", "td"} <= reader.seen
    assert "<script" not in html
    if name != "Compiled":
        assert "&lt;script&gt;" in html


def test_the_loud_lines_are_in_the_notebook_too(results: dict[str, object]) -> None:
    assert "Slower than eager: 0.50x" in results["Timings"]._repr_html_()  # type: ignore[attr-defined]
