"""A Record as one HTML file that needs nothing else, and results as HTML for a notebook.

In: a Record, or the frozen results that it is made of. Out: HTML as text. What is shown is chosen
here; how it looks stands in templates/, and pictures come from figures.py. Jinja2 escapes all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from kernelwright.bench.timings import CANDIDATE, Timing, Timings
from kernelwright.details import plan_record
from kernelwright.report import figures, notices
from kernelwright.report.figures import Box, Mark, Point, Span
from kernelwright.report.record import Found, Record
from kernelwright.units import scaled
from kernelwright.verify.certificate import MARKS, Certificate

if TYPE_CHECKING:
    from kernelwright.compiled import Compiled
    from kernelwright.report.outcome import Outcome

CLASSES = {True: "good", False: "bad", None: "none"}
TIE = 0.995  # what rounds to 1.00x is no loss
OPERATORS = 400  # of a graph that is drawn; what is larger is not readable as a picture


def report_html(record: Record) -> str:
    """The whole page."""
    return _render("report.html.j2", page=Page(record))


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kernelwright.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "scaled": scaled,
        "figure": lambda x: "" if x is None else f"{x:.1e}",
        "ms": lambda x: "" if x is None else f"{x:.4g}",
        "us": lambda x: "" if x is None else _microseconds(x),
        "mark": MARKS.__getitem__,
        "state": CLASSES.__getitem__,
        "commas": lambda n: f"{n:,}",
    }
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def _microseconds(value: float) -> str:
    return f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} µs"


# ---- notebooks ------------------------------------------------------------------------------


def compiled_html(compiled: Compiled) -> str:
    page = Page(Record(plan_record(compiled)))
    return _render("compiled.html.j2", page=page, notices=notices.of_compiled(compiled))


def certificate_html(certificate: Certificate) -> str:
    found = certificate.to_json() | {"title": certificate.title}
    return _render("certificate.html.j2", certificate=found)


def timings_html(timings: Timings) -> str:
    told = [*(f"NOT VALID: {p}" for p in timings.problems), *notices.of_timings(timings)]
    return _render(
        "timings.html.j2",
        rows=timing_rows(timings.to_json()),
        notices=told,
        timings=timings.to_json(),
    )


def outcome_html(outcome: Outcome) -> str:
    parts = [compiled_html(outcome.compiled)]
    if outcome.certificate is not None:
        parts.append(certificate_html(outcome.certificate))
    if outcome.timings is not None:
        parts.append(timings_html(outcome.timings))
    return "".join([*parts, str(Markup("<div>written: {}</div>").format(outcome.output))])


# ---- the page -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    state: str
    word: str
    told: str


@dataclass(frozen=True)
class Tied:
    """What runs some steps of a line: a kernel of ours, or a call that stays with torch."""

    name: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A line of the user's source, coloured, with what carries it out."""

    number: int
    text: Markup
    tied: tuple[Tied, ...]

    @property
    def steps(self) -> str:
        return " ".join(step for tied in self.tied for step in tied.steps)


@dataclass(frozen=True)
class Spent:
    """What a step takes, in us: as predicted, on what ground, and as measured."""

    predicted: float | None
    basis: str
    measured: float | None


class Page:
    """What the templates ask of a record."""

    def __init__(self, record: Record) -> None:
        self.record, self.details, self.plan = record, record.details, record.plan
        self.certificate, self.timings = record.certificate, record.timings
        self.profile = record.profile
        self.steps: Sequence[Found] = self.details["steps"]
        self.kernels: Mapping[str, Found] = {k["name"]: k for k in self.details["kernels"]}
        order = {name: i for i, name in enumerate(self.kernels)}
        self.hues: dict[str, int | None] = {
            s["name"]: order[s["kernels"][0]] if s["kernels"] else None for s in self.steps
        }
        self.spent = {s["name"]: self._spent(s) for s in self.steps}

    # ---- the top ----

    @property
    def verdict(self) -> Verdict:
        found = self.certificate
        if found is None:
            return Verdict("none", "Not verified", "No certificate was recorded for this plan.")
        word = "Certified" if found["passed"] else "Not certified"
        if not found["passed"] and found["verdict"].startswith("FAILED"):
            word = "Failed verification"
        return Verdict(CLASSES[bool(found["passed"])], word, found["verdict"])

    @property
    def gain(self) -> dict[str, str] | None:
        """How many times faster, and than what; None where nothing was timed."""
        t = self.timings
        if t is None or not t.get("speedup_over_eager"):
            return None
        eager, best = t["speedup_over_eager"], t["speedup_over_best_baseline"]
        against = f"{best:.2f}x over {t['best_baseline']}, the best of what was timed beside it"
        state = "good" if best >= TIE else "none"
        if t["problems"] or eager < TIE:
            state = "bad"
        if t["problems"]:
            against = f"not valid: {t['problems'][0]}"
        return {
            "value": f"{eager:.2f}x",
            "than": "as fast as eager",
            "against": against,
            "state": state,
        }

    @property
    def tiles(self) -> list[tuple[str, str, str]]:
        """Figures at the top: a number, what it is of, and what it is beside."""
        operators = [r for r in self.details["before"] if r["fate"] not in ("input", "view")]
        launches = sum(s["launches"] for s in self.steps)
        own = sum(1 for s in self.steps if s["kernels"])
        found = [
            (
                f"{len(operators)} → {launches}",
                "operators → launches",
                f"{own} of {len(self.steps)} steps run kernels of ours",
            ),
            (f"{len(self.kernels)}", "generated kernels", f"for {self.details['target']}"),
        ]
        peaks = [
            max((m["bytes"] for m in self.details["memory"][k]), default=0)
            for k in ("before", "after")
        ]
        if peaks[0]:
            share = f"{scaled(peaks[1], 'B')}"
            found.append(
                (share, "of results live at most", f"the original: {scaled(peaks[0], 'B')}")
            )
        if self.certificate is not None:
            checks = self.certificate["checks"]
            passed = sum(c["passed"] is True for c in checks)
            found.append(
                (
                    f"{passed} / {len(checks)}",
                    "checks passed",
                    f"{sum(c['passed'] is False for c in checks)} failed, "
                    f"{sum(c['passed'] is None for c in checks)} not applicable",
                )
            )
        return found

    # ---- source ----

    @property
    def source(self) -> list[list[Line]]:
        found = self.details["source"]
        if found is None:
            return []
        return [
            [
                Line(part["first"] + i, text, self._tied_at(part["first"] + i))
                for i, text in enumerate(_coloured(part["text"]))
            ]
            for part in found["parts"]
        ]

    def _tied_at(self, number: int) -> tuple[Tied, ...]:
        place = f"{self.details['source']['file']}:{number}"
        found: dict[str, list[str]] = {}
        for step in self.steps:
            if place in step["places"]:
                runs = step["kernels"][0] if step["kernels"] else called(step)
                found.setdefault(runs, []).append(step["name"])
        return tuple(Tied(name, tuple(steps)) for name, steps in found.items())

    def line_of(self, place: str) -> int | None:
        """The line on this page that a place in a file is, if it is there."""
        found = self.details["source"]
        name, _, number = place.rpartition(":")
        if found is None or name != found["file"]:
            return None
        spans = [(p["first"], p["first"] + p["text"].count("\n")) for p in found["parts"]]
        return int(number) if any(a <= int(number) <= b for a, b in spans) else None

    def hue(self, step: str) -> str:
        index = self.hues.get(step)
        return "library" if index is None else f"k{index % figures.HUES}"

    # ---- ledger ----

    @property
    def ledger(self) -> list[dict[str, Any]]:
        names = {s["name"] for s in self.steps}
        calls = {s["call"].removeprefix("aten."): s for s in self.steps if s["call"]}
        found = []
        for row in self.plan["ledger"]:
            steps = [row["where"]] if row["where"] in names else []
            if row["fate"] == "aten" and row["where"] in calls:
                steps = [
                    s["name"]
                    for s in self.steps
                    if row["origin"] in s["places"]
                    and s["call"].removeprefix("aten.") == row["where"]
                ]
            found.append({**row, "steps": steps})
        return found

    # ---- graphs ----

    @property
    def graphs(self) -> list[tuple[str, Markup]]:
        """Before and after fusion; of what is too large to be drawn there is the table alone."""
        if len(self.details["before"]) > OPERATORS:
            return []
        before = [self._operator(node) for node in self.details["before"]]
        inputs = [n for n in self.details["before"] if n["op"] == "input"]
        after = [*(self._operator(n) for n in inputs), *map(self._step, self.steps)]
        count = sum(not b.plain for b in before)
        told = f"{count} operators as they were captured, from above to below"
        first = figures.graph(before, "graph-before", "The graph before fusion", told)
        told = f"{len(self.steps)} steps as they run, from above to below"
        second = figures.graph(after, "graph-after", "The graph after fusion", told)
        return [("before", Markup(first)), ("after", Markup(second))]

    def _operator(self, node: Found) -> Box:
        steps = tuple(s for s in node["steps"] if s in self.hues)
        own = [s for s in steps if self.hues[s] is not None]
        hue = self.hues[own[0]] if own else None
        head = node["name"] if node["op"] == "input" else node["op"]
        plain = node["fate"] in ("input", "view", "folded")
        fates = {"view": "an index map", "folded": "folded by a law", "input": "an input"}
        told = f"{head}, {node['type']}: {fates.get(node['fate']) or 'in ' + ', '.join(steps)}"
        mark = Mark(told, f"#step-{(own or steps)[0]}" if steps else "", steps)
        return Box(
            node["name"],
            head,
            node["type"].replace("batch", "b"),
            tuple(node["inputs"]),
            mark,
            hue,
            plain,
            node["op"] == "input",
        )

    def _step(self, step: Found) -> Box:
        name, hue = step["name"], self.hues[step["name"]]
        below = step["ops"] if hue is not None else called(step)
        below = below if len(below) <= 40 else below[:38] + "…"
        mark = Mark(f"{name}: {step['ops']}; {step['why']}", f"#step-{name}", (name,))
        return Box(name, name, below, tuple(step["reads"]), mark, hue)

    # ---- times ----

    @property
    def ceilings(self) -> Found | None:
        """Bytes and operations a second that the machine reaches, and who says so."""
        if self.profile is not None:
            found: Found = self.profile["ceilings"]
            return found
        return None

    def _spent(self, step: Found) -> Spent:
        from kernelwright.profile.predict import predicted

        time, basis = predicted(step, self.ceilings)
        measured = None
        if self.profile is not None:
            parts = [r["us"] for r in self.profile["spent"] if r["step"] == step["name"]]
            measured = sum(parts) if parts else None
        return Spent(time, basis, measured)

    @property
    def roofline(self) -> Markup | None:
        """None where nobody knows what the machine can do."""
        if self.ceilings is None:
            return None
        points = [
            Point(
                s["name"],
                s["flops"],
                s["bytes"],
                self.spent[s["name"]].predicted,
                self.spent[s["name"]].measured,
                self.hues[s["name"]],
                (s["name"],),
            )
            for s in self.steps
        ]
        found = self.ceilings
        return Markup(
            figures.roofline(
                points, found["bandwidth"], found["flops"], "roofline", "The steps on a roofline"
            )
        )

    @property
    def memory(self) -> Markup:
        found = self.details["memory"]
        before, after = ([m["bytes"] for m in found[k]] for k in ("before", "after"))
        title = "Live results over a call"
        return Markup(figures.steps_of_memory(before, after, "memory-over-the-call", title))

    @property
    def timing_rows(self) -> list[dict[str, Any]]:
        return timing_rows(self.timings) if self.timings else []

    @property
    def training_rows(self) -> list[dict[str, Any]]:
        found = self.timings.get("training") if self.timings else None
        return timing_rows({"rows": found}) if found else []

    def picture_of(self, rows: Sequence[Found], name: str, title: str) -> Markup | None:
        shown = [
            Span(
                r["name"],
                r["median_ms"],
                r["p10_ms"],
                r["p90_ms"],
                "accent" if r["ours"] else "muted",
            )
            for r in rows
            if r["median_ms"] is not None
        ]
        return Markup(figures.spans(shown, name, title)) if shown else None

    @property
    def groups(self) -> list[tuple[str, list[Found]]]:
        """The checks by what stands before the colon of their names."""
        assert self.certificate is not None
        found: dict[str, list[Found]] = {}
        for check in self.certificate["checks"]:
            head, colon, _ = check["name"].partition(": ")
            found.setdefault(head if colon else "values and interface", []).append(check)
        return list(found.items())

    @property
    def notices(self) -> list[str]:
        found: list[str] = [*self.record.notices, *self.plan.get("notices", ())]
        if self.timings is not None:
            found += [f"Not valid: {problem}." for problem in self.timings["problems"]]
            found += self.timings.get("warnings", ())
        return found


def called(step: Found) -> str:
    """`aten.linear` for a step that stays with torch."""
    return step["call"].removesuffix(".default") or str(step["kind"])


def timing_rows(timings: Found) -> list[dict[str, Any]]:
    """The rows of a table of times, each with the candidate's gain over it."""
    ours = next((r for r in timings["rows"] if r["name"] == CANDIDATE), None)
    found = []
    for row in timings["rows"]:
        ratio = None
        if ours and ours["median_ms"] and row["median_ms"] and row["name"] != CANDIDATE:
            ratio = row["median_ms"] / ours["median_ms"]
        name = "kernelwright" if row["name"] == CANDIDATE else row["name"]
        found.append(
            {
                **asdict(Timing("")),
                **row,
                "name": name,
                "ratio": ratio,
                "ours": row["name"] == CANDIDATE,
            }
        )
    return found


def _coloured(text: str) -> list[Markup]:
    """The lines of a Python text, in spans with Pygments' short classes."""
    from pygments import lex
    from pygments.lexers import PythonLexer
    from pygments.token import STANDARD_TYPES

    lines: list[list[Markup]] = [[]]
    for kind, piece in lex(text, PythonLexer(stripnl=False, ensurenl=False)):
        name = STANDARD_TYPES.get(kind, "")
        for i, part in enumerate(piece.split("\n")):
            if i:
                lines.append([])
            if part:
                span = Markup('<span class="{}">{}</span>').format(name, part)
                lines[-1].append(span if name and name != "w" else Markup.escape(part))
    return [Markup("").join(line) for line in lines]
