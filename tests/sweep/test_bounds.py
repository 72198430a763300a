"""What a task may not do costs its own task alone, with its reason in the row."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pretending import LIMITS, alive, pretend, reasons, started, statuses, write_problems

from kernelwright.sweep.journal import rows

BAD = {
    "hang": ("hung", "Stopped while pretending: its time of"),
    "half": ("hung", "Stopped while pretending: its time of"),
    "eat": ("memory", "used more than 400 MB of memory"),
    "fill": ("disk", "wrote more than 64 MB"),
    "large": ("disk", "wrote more than 64 MB"),
    "group": ("crashed", "Ended while pretending: it died with signal 9 (SIGKILL)"),
    "guard": ("crashed", "its guard was killed"),
    "fork": ("processes", "started more than 40 processes"),
    "exit 3": ("crashed", "it ended with exit code 3. last words"),
}


def test_what_a_task_does_costs_its_own_alone(tmp_path: Path) -> None:
    what = {f"{name.split()[0]}": name for name in BAD} | {"good": "pass 2.0", "z": "stay"}
    problems = write_problems(tmp_path / "p", what | {"shut": "shut"})
    out, log = tmp_path / "out", tmp_path / "log"
    pretend(problems, out, replace(LIMITS, seconds=3.0), log, jobs=4)
    told = reasons(out)
    for name, (status, reason) in BAD.items():
        problem = name.split()[0]
        assert statuses(out)[problem] == status, told[problem]
        assert reason in told[problem]
    assert {statuses(out)[name] for name in ("good", "z", "shut")} == {"passed"}
    kept = {row["problem"]: row for row in rows(out)}
    assert kept["half"]["certified"] and kept["half"]["verdict"] == "PASSED: 3 checks"
    assert kept["eat"]["peak"] > 400 << 20 and kept["eat"]["cpu"] > 0
    deadline = time.monotonic() + 20
    left = [pid for _, pid in started(log)]
    while any(map(alive, left)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in left if alive(pid)], "processes of tasks stayed behind"
    assert "stayer" in {name for name, _ in started(log)}


@pytest.mark.parametrize("seconds", [0.5])
def test_who_waits_for_a_device_uses_no_time(tmp_path: Path, seconds: float) -> None:
    problems = write_problems(tmp_path / "p", {"a": f"waits {seconds * 4}", "b": "hang"})
    pretend(problems, tmp_path / "out", replace(LIMITS, seconds=seconds))
    assert statuses(tmp_path / "out") == {"a": "passed", "b": "hung"}
