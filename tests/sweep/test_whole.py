"""Sweeps of real problems, small ones, on the CPU: the command, its pages, its exit codes."""

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
from test_formats import ANSWERS, SAMPLES

from kernelwright.cli import main
from kernelwright.sweep.journal import rows

SCALE = "kernelbench/1_scale_and_shift"
BOT = "kernelbot/scaled_softmax"


def swept(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    out = tmp_path / "run"
    common = ["--device", "cpu", "--quiet", "--seconds", "0.1", "--json", str(tmp_path / "r.json")]
    assert main(["sweep", *map(str, arguments), "--out", str(out), *common]) == 0
    report: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    assert report["error"] is None
    return {f"{row['problem']} {row['candidate']}".strip(): row for row in rows(out)}


def test_candidates_are_judged(tmp_path: Path) -> None:
    """Right, wrong, one that cannot be loaded, and one whose process kills its group."""
    right = ANSWERS[SCALE]["new.py"]
    killer = "import os\nos.killpg(0, 9)\n"
    texts = {
        "right": right,
        "wrong": right.replace(".tanh()", ".sin()"),
        "broken": "class ModelNew: (\n",
        "killer": right.replace(
            "        return", "        __import__('os').killpg(0, 9)\n        return"
        ),
        "killer_at_load": killer + right,
    }
    folder = tmp_path / "c" / "1_scale_and_shift"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    found = swept(tmp_path, SAMPLES / "kernelbench", "--candidates", tmp_path / "c", "--no-bench")
    told = {name.rpartition("/")[2].removesuffix(".py"): row for name, row in found.items()}
    assert {name: row["status"] for name, row in told.items()} == {
        "right": "passed",
        "wrong": "wrong",
        "broken": "input",
        "killer": "wrong",
        "killer_at_load": "wrong",
    }
    assert "oracle" in told["wrong"]["verdict"]
    assert "SyntaxError" in told["broken"]["reason"]
    assert "SIGKILL" in told["killer"]["reason"]
    assert str(tmp_path) not in json.dumps(told)


@pytest.mark.slow
def test_a_problem_is_optimized_in_its_own_form(tmp_path: Path, extensions: Path) -> None:
    """Compiled, certified, timed, handed in, and passed by the task's own evaluator."""
    pytest.importorskip("yaml", reason="task.yml is read with PyYAML")
    (row,) = swept(tmp_path, SAMPLES / BOT, "--harness").values()
    assert row["status"] == "passed", row["reason"]
    assert [case["certified"] for case in row["cases"]] == [True] * 3
    assert [("ms" in case) for case in row["cases"]] == [False, True, True]
    assert row["speedup"] > 0 and row["kernels"] >= 1
    assert row["harness"]["passed"] and len(row["harness"]["benchmarks"]) == 2
    assert row["harness"]["geometric_mean_ns"] > 0
    kept = tmp_path / "run/artefacts" / row["key"]
    assert "def custom_kernel(data)" in (kept / "submission.py").read_text()


def test_ctrl_c_ends_a_sweep_in_one_line(tmp_path: Path) -> None:
    problems = tmp_path / "p"
    problems.mkdir()
    (problems / "a.py").write_text("import time\ntime.sleep(3600)\ndef get_inputs(): return []\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    out = tmp_path / "run"
    command = [sys.executable, "-m", "kernelwright", "sweep", str(problems), "--out", str(out)]
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not (out / "results.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and said.strip().endswith("kernelwright: Interrupted.")
    assert (out / "results.jsonl").read_text() == ""
