"""Who times is alone on its device, however many wait for it and whoever dies with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.sweep.devices import VISIBLE, Device, gpus, name_of

TASK = """
import sys, time
from pathlib import Path
from kernelwright.sweep.devices import Device

def log(what):
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.monotonic_ns()} {what} {sys.argv[2]}\\n")

with Device("machine") as device:
    for _ in range(4):
        log("works")
        time.sleep(0.02)
        log("rests")
        with device.alone():
            log("times")
            time.sleep(0.02)
            log("timed")
"""


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KERNELWRIGHT_LOCKS", str(tmp_path))
    yield tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_nobody_works_while_somebody_times(locks: Path) -> None:
    log = locks / "log"
    command = [sys.executable, "-c", TASK, str(log)]
    running = [subprocess.Popen([*command, str(i)], env=environment()) for i in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    events = sorted(line.split()[:2] for line in log.read_text().splitlines())
    timing = working = together = 0
    for _, what in events:
        timing += {"times": 1, "timed": -1}.get(what, 0)
        working += {"works": 1, "rests": -1}.get(what, 0)
        together = max(together, working)
        assert timing in (0, 1) and not (timing and working)
    assert sum(what == "times" for _, what in events) == 16
    assert together > 1, "nobody worked beside another"


HOLDER = """
import sys, time
from pathlib import Path
from kernelwright.sweep.devices import Device

with Device("machine") as device, device.alone():
    Path(sys.argv[1]).touch()
    time.sleep(3600)
"""


WORKER = """
import sys, time
from pathlib import Path
from kernelwright.sweep.devices import Device

with Device("machine") as device:
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
        device.pause()
"""


def test_who_works_in_steps_lets_others_time(locks: Path) -> None:
    done = locks / "done"
    running = subprocess.Popen([sys.executable, "-c", WORKER, str(done)], env=environment())
    for _ in range(5):
        with Device("machine") as device, device.alone():
            assert running.poll() is None
    done.touch()
    assert running.wait(60) == 0


def test_a_lock_ends_with_its_process(locks: Path) -> None:
    held = locks / "held"
    running = subprocess.Popen([sys.executable, "-c", HOLDER, str(held)], env=environment())
    while not held.exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.kill()
    running.wait()
    with Device("machine") as device, device.alone():
        pass


def test_a_device_is_named_by_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "3, GPU-5")
    assert gpus() == ["3", "GPU-5"]
    assert name_of("auto") == "gpu-3" and name_of("cpu") == "machine"
    monkeypatch.setenv(VISIBLE, "")
    assert name_of("auto") == "machine"
