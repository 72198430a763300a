"""What is told of a sweep: fast_p, means, the worst, a comparison, the time left, and its pages."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pretending import pretend, write_problems

from kernelwright.errors import InputError
from kernelwright.sweep.page import html, markdown, sheets
from kernelwright.sweep.run import PAGES
from kernelwright.sweep.summary import compared, summarised
from kernelwright.sweep.watch import Estimate


def row(name: str, status: str = "passed", speedup: float | None = None, **more: Any) -> Any:
    ms = {"candidate": 1.0, "eager": speedup} if speedup else {}
    found = {"problem": name, "candidate": "", "class": "a", "status": status, "reason": ""}
    return {**found, "speedup": speedup, "ms": ms, "seconds": 1.0, **more}


ROWS = [
    row("one", speedup=4.0),
    row("two", speedup=1.0),
    row("three", speedup=0.25, **{"class": "b"}),
    row("four"),
    row("five", "wrong", 9.0, reason="oracle: off"),
]


def test_fast_p_is_a_share_of_all_tasks() -> None:
    summary = summarised(ROWS)
    fast = {p: summary.whole.fast(p) for p in (0.0, 0.5, 1.0, 2.0, 5.0)}
    assert fast == {0.0: 4 / 5, 0.5: 2 / 5, 1.0: 1 / 5, 2.0: 1 / 5, 5.0: 0.0}
    assert summary.whole.mean == pytest.approx(1.0) and summary.whole.timed == 3
    assert summary.classes["a"].mean == pytest.approx(2.0)
    assert summary.classes["b"].fast(0.0) == 1.0
    assert dict(summary.statuses) == {"passed": 4, "wrong": 1}


def test_the_worst_are_what_failed_and_then_the_slowest() -> None:
    names = [row["problem"] for row in summarised(ROWS).worst]
    assert names == ["five", "three", "two", "one", "four"]
    many = [row(f"{i:03}", speedup=1.0 + i) for i in range(100)]
    assert [r["problem"] for r in summarised(many[::-1]).worst] == [f"{i:03}" for i in range(10)]


def test_a_problem_counts_by_its_best_candidate() -> None:
    rows = [row("a", speedup=s, candidate=str(s)) for s in (0.5, 3.0)]
    rows += [row("b", "hung", candidate="x"), row("b", "wrong", candidate="y")]
    best = summarised(rows).of_problems
    assert (best.tasks, best.passed, best.fast(2.0)) == (2, 1, 0.5)
    assert best.mean == pytest.approx(3.0)


def test_means_over_other_baselines_have_their_own_count() -> None:
    rows = [row("a", speedup=2.0), row("b", speedup=8.0)]
    rows[0]["ms"]["compile"] = 3.0
    whole = summarised(rows).whole
    assert whole.mean == pytest.approx(4.0) and whole.mean_over("compile") == pytest.approx(3.0)


def test_two_sweeps_compared() -> None:
    faster = [{**r, "ms": {name: ms / 2 for name, ms in r["ms"].items()}} for r in ROWS[:3]]
    found = compared([*faster, row("four", "hung"), row("new")], ROWS, "before")
    assert (found.shared, found.only_here, found.only_there, found.timed) == (4, 1, 1, 3)
    assert found.ratio == pytest.approx(2.0)
    assert found.changed == [{"problem": "four", "candidate": "", "from": "passed", "to": "hung"}]


def test_the_time_left_is_a_range_that_holds() -> None:
    estimate = Estimate(0.0)
    assert estimate.left(10) is None
    for end in (1.0, 2.5, 3.0, 4.5, 5.5, 6.0):
        estimate.ended(end)
    low, high = estimate.left(60) or (math.nan, math.nan)
    assert 0 < low < 60.0 < high < 120.0
    steady = Estimate(0.0)
    for end in range(1, 11):
        steady.ended(float(end))
    assert steady.left(5) == pytest.approx((5.0, 5.0))
    assert steady.left(0) is None


class Page(HTMLParser):
    """The tags that are open, what they hold, and what they point to."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.scopes = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [v or "" for name, v in attributes if name in ("src", "href")]
        self.scopes += ("scope", "col") in attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


NASTY = "<script>alert(1)</script> | a\\b `x`\n# title"


def test_pages_hold_what_somebody_s_code_said_as_text() -> None:
    summary = summarised([row("p", "wrong", reason=NASTY, candidate="<b>.py")])
    made = sheets(summary)
    page = Page(html("Sweep", ["fact <i>"], made))
    assert page.open == [] and not page.links
    assert "script" not in page.seen and "b" not in page.seen and "i" not in page.seen
    assert page.scopes == sum(len(sheet.heads) for sheet in made)
    text = markdown("Sweep", ["fact"], made)
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == len(made)
    for table in tables:
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1, table
    assert "<script>" not in text


def test_the_pages_of_a_sweep(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {"x/a": "pass 3.0", "y/b": "wrong"})
    before = tmp_path / "before"
    pretend(problems, before)
    swept = pretend(problems, tmp_path / "out", compare=before)
    assert swept.comparison is not None and swept.comparison.shared == 2
    texts = [(tmp_path / "out" / name).read_text() for name in PAGES]
    for text in texts[:2]:
        for told in ("fast_1.5", "The worst ten", "Compared with", "3.00x", "50.0%"):
            assert told in text
    assert "prefers-color-scheme: dark" in texts[1] and "http" not in texts[1]
    document = json.loads(texts[2])
    assert document["summary"]["all"]["fast"]["1.5"] == 0.5
    assert document["comparison"]["ratio"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="holds no sweep"):
        pretend(problems, tmp_path / "other", compare=tmp_path)
