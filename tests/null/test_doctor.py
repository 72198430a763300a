"""doctor: what it says of a machine; the trials themselves run in tests/cpu/test_doctor.py."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from kernelwright import doctor
from kernelwright.cli import main

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tried(monkeypatch: pytest.MonkeyPatch, **outcomes: tuple[int | None, str]) -> list[str]:
    """Trials by name with their exit status and last line; returns those that were run."""
    run: list[str] = []

    def fake(
        command: list[str], environment: dict[str, str], limit: float
    ) -> tuple[int | None, str, str]:
        trial = command[3]
        run.append(trial)
        status, said = outcomes.get(trial, (0, f"{trial} is fine"))
        return status, f"noise\n{said}\n", f"noise\n\x1b[31m{said}\x1b[0m\n"

    monkeypatch.setattr(doctor, "_bounded", fake)
    return run


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    told = json.loads(capsys.readouterr().out)
    return {ability["name"]: ability for ability in told["abilities"]} | {"": told}


def test_a_machine_on_which_all_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tried(monkeypatch)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("C++ compiler", "ninja", torch.__version__, "GPU", "writable", "CPU kernels"):
        assert word in out
    assert run == ["kernels", "verify", "bench", "compile"]
    assert main(["doctor", "--json", "-"]) == 0
    told = report(capsys)
    assert told[""]["healthy"] is True and told[""]["backend"] == "cpu"
    assert told["CPU kernels"]["detail"] == "kernels is fine"
    assert told["CUDA kernels"]["works"] is None and told["CUDA kernels"]["advice"]


def test_kernels_that_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tried(monkeypatch, kernels=(1, "the kernel's result is off by 3"))
    assert main(["doctor", "--json", "-"]) == 4
    told = report(capsys)
    assert told[""]["healthy"] is False
    assert told["CPU kernels"]["detail"] == "the kernel's result is off by 3"
    assert told["verify"]["works"] is False and "verify" not in run


def test_what_is_missing_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried(monkeypatch, compile=(1, "no triton"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["doctor", "--json", "-"]) == 4
    told = report(capsys)
    assert "no-such-compiler" in str(told["CPU kernels"]["detail"])
    assert "set CXX" in str(told["CPU kernels"]["advice"])
    assert told["torch.compile baseline"]["works"] is False


def test_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    run = tried(monkeypatch)
    cache.touch()
    assert main(["doctor", "--json", "-"]) == 4
    told = report(capsys)
    assert "XDG_CACHE_HOME" in str(told["CPU kernels"]["advice"]) and "kernels" not in run


def test_a_trial_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    started = time.monotonic()
    status, _, _ = doctor._bounded([sys.executable, "-c", code], {}, 1.0)
    assert status is None and time.monotonic() - started < 20
