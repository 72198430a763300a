"""Drivers and workers are killed and stopped: the results are those of a sweep that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pretending import HERE, alive, pretend, started, statuses, write_problems

from kernelwright.sweep.journal import RESULTS, rows
from kernelwright.sweep.page import sheets
from kernelwright.sweep.summary import summarised

COUNT = 60
SECONDS = 60.0


def problems_of(folder: Path) -> Path:
    kinds = ["slow 0.05 2.0", "slow 0.05 0.5", "slow 0.05 1.25", "wrong", "exit 1"]
    names = {f"class{i % 3}/{i}": kinds[i % len(kinds)] for i in range(COUNT)}
    return write_problems(folder, names)


def driver(problems: Path, out: Path, log: Path, **more: Any) -> subprocess.Popen[bytes]:
    asked = {"problems": problems, "out": out, "log": log, "resume": out.exists(), **more}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(HERE / "pretending.py"), json.dumps(asked, default=str)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(out: Path) -> int:
    path = out / RESULTS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def tables(out: Path) -> list[Any]:
    """All of the summary but how long it took."""
    return [(sheet.title, sheet.rows) for sheet in sheets(summarised(rows(out)))]


def test_a_driver_killed_three_times_gives_the_same_table(tmp_path: Path) -> None:
    problems = problems_of(tmp_path / "p")
    pretend(problems, tmp_path / "calm", jobs=4)
    out, log = tmp_path / "out", tmp_path / "log"
    for time_of_kill in (8, 24, 40):
        running = driver(problems, out, log)
        wait_until(lambda: lines(out) >= time_of_kill)  # noqa: B023
        running.kill()
        running.wait()
        wait_until(lambda: not any(alive(pid) for _, pid in started(log)))
    assert lines(out) < COUNT
    known = {row["problem"] for row in rows(out)}
    before = len(started(log))
    assert driver(problems, out, log).wait(SECONDS) == 0
    assert not known & {name for name, _ in started(log)[before:]}, "a task was repeated"
    assert len(list(rows(out))) == len(statuses(out)) == COUNT
    assert statuses(out) == statuses(tmp_path / "calm")
    assert tables(out) == tables(tmp_path / "calm")


def test_a_worker_that_is_killed_costs_its_own_task(tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {"a": "hang", "b": "slow 0.5", "c": "slow 0.5"})
    out, log = tmp_path / "out", tmp_path / "log"
    running = driver(problems, out, log)
    wait_until(lambda: any(name == "a" for name, _ in started(log)))
    os.kill(next(pid for name, pid in started(log) if name == "a"), signal.SIGKILL)
    assert running.wait(SECONDS) == 0
    assert statuses(out) == {"a": "crashed", "b": "passed", "c": "passed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_stopped_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    problems = write_problems(tmp_path / "p", {"a": "pass", "b": "hang", "c": "hang"})
    out, log = tmp_path / "out", tmp_path / "log"
    running = driver(problems, out, log)
    wait_until(lambda: {"b", "c"} <= {name for name, _ in started(log)} and lines(out) == 1)
    running.send_signal(number)
    assert running.wait(SECONDS) != 0
    wait_until(lambda: not any(alive(pid) for _, pid in started(log)))
    assert statuses(out) == {"a": "passed"}
