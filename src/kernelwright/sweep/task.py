"""One unit of a sweep: a Task is a value with a content hash, a Row is what came of it.

In: the texts of a problem and, where one is judged, of a candidate. Out: values that JSON carries
to a child process, to another machine and into the journal. The one idea: everything that decides a
result is in the hash, so that a task is recognised wherever it ran before, and nothing else is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelwright.formats.posed import Files, Posed
from kernelwright.version import SCHEMA

Row = dict[str, Any]

PASSED = "passed"
STATUSES = {
    PASSED: "certified, and its timings are valid",
    "wrong": "not the same function",
    "invalid": "certified, but its timings cannot be believed",
    "unsupported": "the model cannot be compiled",
    "build": "the compiler is missing, or refused the source",
    "input": "the problem or the candidate cannot be used as it is",
    "hung": "stopped when its time was over",
    "memory": "stopped when it used more memory than it may",
    "disk": "stopped when it wrote more than it may",
    "processes": "stopped when it had started more processes than it may",
    "crashed": "its process ended without a result",
    "lost": "its worker was lost each time it was tried",
    "bug": "an error inside kernelwright",
}


@dataclass(frozen=True)
class Options:
    """What is done with every task; part of its hash."""

    device: str = "auto"
    precision: str = "current"
    training: bool | None = None
    quick: bool = True
    verify: bool = True
    bench: bool = True
    baselines: tuple[str, ...] = ("eager",)
    seconds: float = 1.0
    harness: bool = False


@dataclass(frozen=True)
class Limits:
    """What one task may take; no part of its hash."""

    seconds: float = 600.0
    memory: int = 16 << 30
    disk: int = 4 << 30
    processes: int = 400


@dataclass(frozen=True)
class Task:
    """A problem, and a candidate for it unless ours is to be made.

    `refused` is why there is nothing to run: its files could not even be read.
    """

    problem: Posed
    family: str
    candidate: str = ""
    answer: Files = field(default_factory=dict)
    options: Options = Options()
    version: str = ""
    refused: str = ""

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        return f"{self.problem.name} {self.candidate}".strip()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Task:
        options = {**value["options"], "baselines": tuple(value["options"]["baselines"])}
        made = {"problem": Posed(**value["problem"]), "options": Options(**options)}
        return Task(**{**value, **made})


def row_of(task: Task, status: str, reason: str = "", **found: Any) -> Row:
    """A line of the journal."""
    return {
        "schema": SCHEMA,
        "key": task.key,
        "problem": task.problem.name,
        "candidate": task.candidate,
        "class": task.family,
        "form": task.problem.form,
        "status": status,
        "reason": reason,
        **found,
    }


def passed(row: Mapping[str, Any]) -> bool:
    return bool(row["status"] == PASSED)
