"""The report: what is recorded of a plan, the page made of it, and what the command refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from reported import EVIL, certificate, profiled, timings
from torch import nn

import kernelwright
from kernelwright.cli import main
from kernelwright.details import plan_record
from kernelwright.errors import InputError
from kernelwright.report import record as records
from kernelwright.report.figures import Mark, bars, drawing, svg
from kernelwright.report.layers import laid_out
from kernelwright.report.page import Page, report_html
from kernelwright.report.record import Record

pytest.importorskip("matplotlib", reason="the report's pictures need matplotlib")

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        y = self.norm(torch.relu(self.fc(x)))
        return torch.cumsum(y, 0) + y


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def plan(model: Path) -> dict[str, Any]:
    compiled = kernelwright.explain(model, device="cpu")
    value: dict[str, Any] = json.loads(json.dumps(plan_record(compiled)))
    return value


@pytest.fixture(scope="module")
def whole(plan: dict[str, Any]) -> Record:
    return Record(plan, certificate(), timings(), profiled(plan), "new.py")


@pytest.fixture(scope="module")
def page(whole: Record) -> str:
    return report_html(whole)


class Reader(HTMLParser):
    """Ids, links within the page, and anything that would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.fetched: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.scripts += tag == "script"
        href = found.get("href") or ""
        if href.startswith("#"):
            self.links.add(href[1:])
        elif href or found.get("src") or tag in ("link", "img", "iframe", "object"):
            self.fetched.append(tag)


# ---- what is recorded -----------------------------------------------------------------------


def test_details_tie_lines_steps_and_kernels(plan: dict[str, Any]) -> None:
    found = plan["details"]
    (part,) = found["source"]["parts"]
    assert part["first"] == 5 and part["text"].startswith("class Model")
    assert found["source"]["lines"] == len(MODEL.splitlines())
    steps = {s["name"]: s for s in found["steps"]}
    assert any("model.py:12" in s["places"] for s in steps.values())
    for kernel in found["kernels"]:
        assert kernel["steps"] and set(kernel["steps"]) <= set(steps)
        assert all(kernel["name"] in steps[s]["kernels"] for s in kernel["steps"])
    for node in found["before"]:
        assert set(node["steps"]) <= set(steps)
    assert [n["op"] for n in found["before"] if n["fate"] == "aten"] == ["cumsum"]
    made = [s["name"] for s in found["steps"] if s["result"]]
    assert made == [found["steps"][-1]["name"]]


def test_a_step_reads_from_the_steps_before_it(plan: dict[str, Any]) -> None:
    known = {n["name"] for n in plan["details"]["before"] if n["op"] == "input"}
    for step in plan["details"]["steps"]:
        assert set(step["reads"]) <= known, step["name"]
        known.add(step["name"])


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.tanh(torch.exp(x) + 1), 1)


def test_memory_counts_what_is_live() -> None:
    """Eager holds the input, which it was given, and two results; fused there is one more."""
    compiled = kernelwright.explain(Chain(), (torch.randn(8, 100),))
    found = plan_record(compiled)["details"]["memory"]
    size = 8 * 100 * 4
    assert [m["bytes"] for m in found["before"]] == [size, 2 * size, 2 * size, 2 * size, 2 * size]
    assert [m["bytes"] for m in found["after"]] == [size, 2 * size, 2 * size]


def test_sources_of_live_modules_are_found() -> None:
    compiled = kernelwright.explain(Chain(), (torch.randn(8, 100),))
    found = plan_record(compiled)["details"]["source"]
    assert found["file"] == Path(__file__).name
    assert found["parts"][0]["text"].startswith("class Chain")


# ---- the page -------------------------------------------------------------------------------


def test_the_page_stands_alone_and_its_links_lead_somewhere(page: str) -> None:
    reader = Reader(page)
    assert not reader.fetched and reader.scripts == 1
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.links <= set(reader.ids)
    assert not re.search(r"https?://", re.sub(r'xmlns="[^"]*"', "", page))
    assert "#0101" not in page and "#0102" not in page, "a colour that is no role of the page"


def test_the_page_says_what_was_measured(whole: Record, page: str) -> None:
    assert "Failed verification" in page and "2.00x" in page
    assert EVIL not in page and "&lt;script&gt;alert" in page
    assert "4.096 kB" in page and "10 µs" in page
    assert "as it was measured" in page and "1 / 3" in page
    for step in whole.details["steps"]:
        assert f'id="step-{step["name"]}"' in page


def test_the_page_says_what_was_not_measured(plan: dict[str, Any]) -> None:
    page = report_html(Record(plan))
    for absent in (
        "Not verified",
        "Not timed",
        "Nothing was timed",
        "Nothing was verified",
        "No training step was timed",
        "was not measured",
    ):
        assert absent in page, absent
    assert "measured 1" not in page and 'id="roofline"' not in page


def test_invalid_or_slow_timings_are_no_gain(plan: dict[str, Any]) -> None:
    invalid = Page(Record(plan, timings=timings(problems=["it fell back"]))).gain
    assert (
        invalid is not None and invalid["state"] == "bad" and "it fell back" in invalid["against"]
    )
    behind = Page(Record(plan, timings=timings(speedup_over_best_baseline=0.9))).gain
    assert behind is not None and behind["state"] == "none", "faster than eager, but not the best"
    slow = Page(Record(plan, timings=timings(speedup_over_eager=0.5))).gain
    assert slow is not None and slow["state"] == "bad" and slow["value"] == "0.50x"


def test_timings_that_older_commands_wrote_have_fewer_columns(plan: dict[str, Any]) -> None:
    old = timings()
    for row in old["rows"]:
        del row["peak_bytes"], row["call_ms"], row["compile_s"]
    del old["training"], old["warnings"]
    found = Page(Record(plan, timings=old))
    assert found.training_rows == [] and found.timing_rows[0]["peak_bytes"] is None


def test_a_graph_too_large_for_a_picture_is_left_to_the_table(
    whole: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelwright.report.page.OPERATORS", 1)
    page = report_html(whole)
    assert "too many for a picture" in page and 'id="graph-before"' not in page


# ---- pictures -------------------------------------------------------------------------------


def test_the_same_figures_give_the_same_page(whole: Record, page: str) -> None:
    assert report_html(whole) == page


def test_marks_become_links_with_names() -> None:
    with drawing(100, 100) as figure:
        axis = figure.add_axes((0, 0, 1, 1))
        axis.plot(1, 1, "o", gid="mark-0")
        axis.plot(2, 2, "o", gid="mark-1")
        marks = [Mark("one", "#there", ("a", "b")), Mark("two")]
        text = svg(figure, "picture", "A <title>", "what it shows", marks)
    assert 'role="group"' in text and "<title" in text and "A &lt;title&gt;" in text
    assert 'href="#there" aria-label="one" data-steps="a b"' in text
    assert text.count('class="mark"') == 2
    assert 'aria-labelledby="picture-t picture-d"' in text


def test_bars_are_printed_in_colours_of_their_own() -> None:
    rows = [("fast & small", 7.5, 12.0), ("slow", 0.8, None)]
    text = bars(rows, "On <a machine>", "the floor")
    assert "fast &amp; small" in text and "7.50x" in text and "&lt;a machine&gt;" in text
    assert "var(--" not in text and "#0101" not in text


def test_layers_stand_below_what_they_read() -> None:
    reads = {"x": [], "a": ["x"], "b": ["a"], "c": ["b", "x"], "w": [], "d": ["c", "w"]}
    widths = dict.fromkeys(reads, 50.0)
    places, lines, width = laid_out(reads, widths, 10.0, ["x"])
    assert all(places[r][1] < places[n][1] for n, found in reads.items() for r in found)
    assert places["w"][1] == places["c"][1], "what depends on no input stands right above"
    assert max(len(line) for line in lines) == 4, "an edge passes through every layer between"
    assert all(24.9 <= x <= width - 24.9 for x, _ in places.values())
    for layer in {y for _, y in places.values()}:
        xs = sorted(x for x, y in places.values() if y == layer)
        assert all(b - a >= 60 - 1e-6 for a, b in pairwise(xs))


def test_a_chain_is_a_straight_line() -> None:
    reads = {str(i): [str(i - 1)] if i else [] for i in range(30)}
    widths = {name: 40.0 + 5 * (int(name) % 7) for name in reads}
    places, _, _ = laid_out(reads, widths, 10.0, ["0"])
    assert max(x for x, _ in places.values()) - min(x for x, _ in places.values()) < 1e-6


# ---- where it is read from ------------------------------------------------------------------


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def never() -> dict[str, Any]:
    raise AssertionError("the plan was recorded, so nothing is to be compiled")


def test_files_are_put_together(tmp_path: Path, plan: dict[str, Any]) -> None:
    one = write(
        tmp_path / "optimize.json",
        {
            "plan": plan,
            "certificate": None,
            "timings": None,
            "output": "new.py",
            "notices": ["mind"],
        },
    )
    more = [
        write(tmp_path / "verify.json", certificate()),
        write(tmp_path / "bench.json", timings()),
        write(tmp_path / "profile.json", profiled(plan)),
    ]
    alone = records.recorded(one, [], never)
    assert alone.lacks == ("certificate", "timings", "profile") and alone.notices == ["mind"]
    together = records.recorded(one, more, never)
    assert together.lacks == () and together.details["name"] == "model"


def test_what_is_no_record_is_refused(tmp_path: Path, plan: dict[str, Any]) -> None:
    for value, told in (
        ([], "no report"),
        ({"x": 1}, "no report"),
        ({"plan": {"ledger": []}}, "older kernelwright"),
        (certificate(), "holds no plan"),
    ):
        with pytest.raises(InputError, match=told):
            records.recorded(write(tmp_path / "a.json", value), [], never)
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        records.recorded(tmp_path / "b.json", [], never)


def test_a_profile_of_other_steps_is_refused(tmp_path: Path, plan: dict[str, Any]) -> None:
    one, other = write(tmp_path / "explain.json", plan), profiled(plan) | {"steps": []}
    with pytest.raises(InputError, match="has other steps than this plan"):
        records.recorded(one, [write(tmp_path / "profile.json", other)], never)


def test_a_certificate_of_another_text_is_refused(
    tmp_path: Path, model: Path, plan: dict[str, Any]
) -> None:
    other = certificate() | {"sha256": "0" * 64, "model_sha256": "1" * 64}
    with pytest.raises(InputError, match="of another text than"):
        records.recorded(model, [write(tmp_path / "verify.json", other)], lambda: plan)


def test_the_command_takes_an_emitted_file_and_the_original_in_it(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines are those of the emitted file, and of thousands only the model's are shown."""
    emitted = tmp_path / "model_new.py"
    emitted.write_text(kernelwright.explain(model, device="cpu").source)
    flags = ["--device", "cpu", "-o", str(tmp_path / "out.html"), "--json", "-"]
    assert main(["report", str(emitted), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["lacks"] == ["certificate", "timings", "profile"]
    page = (tmp_path / "out.html").read_text()
    first = emitted.read_text().splitlines().index("class Model(nn.Module):") + 1
    assert f'id="L{first}"' in page and f'id="L{first + 8}"' in page
    assert page.count('class="no"') == 9, "the lines of Model alone"


def test_importing_the_package_imports_neither_pictures_nor_templates() -> None:
    text = "import sys, kernelwright; print({'jinja2', 'matplotlib', 'torch'} & set(sys.modules))"
    asked = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "set()"
