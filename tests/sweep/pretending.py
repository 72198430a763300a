"""Shared by the tests of sweeps: folders of problems that only pretend, and a driver of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kernelwright.sweep import Ask, Corpus, Limits, Place, Plan, Swept, sweep
from kernelwright.sweep.journal import rows

HERE = Path(__file__).parent
FAKE = (sys.executable, "-I", "-S", str(HERE / "fake_worker.py"))
PROBLEM = "# fake: {what}\nclass Model: ...\ndef get_inputs(): return []\n"
MB = 1 << 20
LIMITS = Limits(seconds=60.0, memory=400 * MB, disk=64 * MB, processes=40)


def write_problems(folder: Path, what: Mapping[str, str]) -> Path:
    for name, directive in what.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROBLEM.format(what=directive))
    return folder


def place(limits: Limits = LIMITS, **more: str) -> Place:
    return Place(limits, command=FAKE, environment=more)


def pretend(
    problems: Path, out: Path, limits: Limits = LIMITS, log: Path | None = None, **more: object
) -> Swept:
    environment = {"FAKE_LOG": str(log)} if log else {}
    plan = Plan(out, jobs=4, place=place(limits, **environment), quiet=True)
    return sweep(Corpus(problems), Plan(**{**vars(plan), **more}))  # type: ignore[arg-type]


def statuses(out: Path) -> dict[str, str]:
    return {row["problem"]: row["status"] for row in rows(out)}


def reasons(out: Path) -> dict[str, str]:
    return {row["problem"]: row["reason"] for row in rows(out)}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def started(log: Path) -> list[tuple[str, int]]:
    """Who was started, and as which process."""
    if not log.exists():
        return []
    pairs = (line.rpartition(" ") for line in log.read_text().splitlines())
    return [(name, int(pid)) for name, _, pid in pairs]


def main() -> None:
    """A driver to be killed: problems, out, log, resume, as JSON."""
    asked = json.loads(sys.argv[1])
    problems, out, log = (Path(asked[name]) for name in ("problems", "out", "log"))
    ask = Ask(**asked.get("ask", {}))
    more = {"resume": asked["resume"], "on": asked.get("on", "here"), "ask": ask}
    pretend(problems, out, log=log, **more)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", "src")
    main()
