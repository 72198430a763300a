"""A whole sweep: a corpus in, a folder with results, tables and artefacts out.

The driver reads files, hands tasks out and writes rows; it runs nobody's code. Whatever kills it,
`--resume` begins where the journal ends.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelwright import __version__
from kernelwright.errors import InputError
from kernelwright.files import write_atomically
from kernelwright.sweep.artefacts import filesystem, is_remote
from kernelwright.sweep.child import Place
from kernelwright.sweep.cluster import Ask, imported, rows_on_ray
from kernelwright.sweep.corpus import Corpus
from kernelwright.sweep.here import CORES, rows_here
from kernelwright.sweep.journal import ABOUT, Journal, about, rows
from kernelwright.sweep.page import facts_of, html, markdown, sheets
from kernelwright.sweep.summary import Comparison, Summary, compared, summarised
from kernelwright.sweep.task import Row, Task
from kernelwright.sweep.watch import Watch
from kernelwright.version import SCHEMA

HERE, RAY = "here", "ray"
ARTEFACTS = "artefacts"
PAGES = ("summary.md", "summary.html", "summary.json")

Rows = Callable[[Iterable[Task]], Iterator[Row]]


@dataclass(frozen=True)
class Plan:
    """What is asked of a sweep beside the corpus; `jobs` is how many tasks run at a time."""

    out: Path
    on: str = HERE
    jobs: int | None = None
    resume: bool = False
    compare: Path | None = None
    ask: Ask = field(default_factory=Ask)
    place: Place = field(default_factory=Place)
    quiet: bool = False


@dataclass(frozen=True)
class Swept:
    """What a sweep found, and where it lies."""

    out: Path
    summary: Summary
    comparison: Comparison | None

    def to_json(self) -> dict[str, Any]:
        found = self.comparison.to_json() if self.comparison else None
        return {"out": str(self.out), "summary": self.summary.to_json(), "comparison": found}


def sweep(corpus: Corpus, plan: Plan) -> Swept:
    """Go through a corpus, or on with it, and write the pages."""
    place = _placed(plan)
    if plan.compare is not None:
        about(plan.compare)
    total = corpus.count()
    if not total:
        raise InputError(_nothing(corpus))
    with Journal(plan.out, plan.resume) as journal:
        _write_about(corpus, plan)
        waiting = (task for task in corpus if task.key not in journal.done)
        left = sum(1 for task in corpus if task.key not in journal.done) if plan.resume else total
        with Watch(total, total - left, plan.quiet) as watch:
            for row in _executor(corpus, plan, place)(waiting):
                journal.append(row)
                watch.ended(row)
    return written(plan.out, plan.compare)


def written(out: Path, compare: Path | None = None) -> Swept:
    """The pages of the results in a folder."""
    summary = summarised(rows(out))
    comparison = compared(rows(out), rows(compare), str(compare)) if compare else None
    found, described = sheets(summary, comparison), about(out)
    title, facts = f"Sweep of {described['problems']}", facts_of(described, summary)
    swept = Swept(out, summary, comparison)
    document = {"schema": SCHEMA, "command": "sweep", "error": None, **swept.to_json()}
    texts = (
        markdown(title, facts, found),
        html(title, facts, found),
        json.dumps(document, indent=2) + "\n",
    )
    for name, text in zip(PAGES, texts, strict=True):
        write_atomically(out / name, text)
    return swept


def _executor(corpus: Corpus, plan: Plan, place: Place) -> Rows:
    if plan.on == RAY:
        return lambda tasks: rows_on_ray(tasks, place, plan.ask)
    jobs = plan.jobs or CORES
    return lambda tasks: rows_here(tasks, place, jobs, corpus.options.device != "cpu")


def _placed(plan: Plan) -> Place:
    """The bounds of a task and where artefacts go, found out before the long work."""
    from dataclasses import replace

    where = plan.place.artefacts or str(plan.out.absolute() / ARTEFACTS)
    if is_remote(where):
        filesystem(where)
    if plan.on == RAY:
        imported()
    jobs = plan.jobs or CORES
    threads = max(1, CORES // jobs) if plan.on == HERE else max(1, round(plan.ask.cpus))
    return replace(plan.place, artefacts=where, threads=threads)


def _write_about(corpus: Corpus, plan: Plan) -> None:
    described = {
        "schema": SCHEMA,
        "version": __version__,
        "problems": str(corpus.problems),
        "candidates": str(corpus.candidates) if corpus.candidates else None,
        "options": asdict(corpus.options),
        "on": plan.on,
        "machine": f"{platform.node()}, {CORES} cores, Python {platform.python_version()}",
        "driver": os.getpid(),
    }
    write_atomically(plan.out / ABOUT, json.dumps(described, indent=2) + "\n")


def _nothing(corpus: Corpus) -> str:
    if corpus.candidates is None:
        return f"{corpus.problems} holds no problem: files with get_inputs(), or folders of tasks."
    return (
        f"{corpus.candidates} holds no candidate for the problems in {corpus.problems}; name its "
        "folders or files as the problems are named."
    )
