"""One task, in a process and a folder of its own: a Task in, a Row out, whatever it does.

The caller runs nothing of the task: a guard (guard.py) stands between, bounds it and ends it. What
a worker has found so far lies in its folder, so that a task that is stopped while it is timed keeps
its certificate.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.errors import PACKAGE
from kernelwright.sweep.artefacts import keep
from kernelwright.sweep.task import STATUSES, Limits, Row, Task, row_of

GUARD = Path(__file__).with_name("guard.py")
WORKER = (sys.executable, "-m", "kernelwright.sweep.worker")
TASK, RESULT, KEPT, LOG = "task.json", "result.json", "kept", "log"
MOST_RESULT = 8 << 20
LAST_LINES, LAST_BYTES = 3, 4096
_guards: set[subprocess.Popen[bytes]] = set()
_guarding = threading.Lock()

CACHES = ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(frozen=True)
class Place:
    """Where tasks run: the bounds, the folder for theirs, and where what they made is kept.

    `command` is the worker; it is given the descriptor of its words behind its own arguments.
    """

    limits: Limits = field(default_factory=Limits)
    scratch: str | None = None
    artefacts: str | None = None
    command: tuple[str, ...] = WORKER
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


def attempt(task: Task, place: Place) -> Row:
    """What came of a task; never an exception of its making."""
    if task.refused:
        return row_of(task, "input", task.refused, seconds=0.0)
    started = time.monotonic()
    with _folder(place.scratch) as folder:
        (folder / TASK).write_text(json.dumps(task.to_json()))
        ended = _guarded(folder, place, strangers=bool(task.answer))
        found = _result(folder)
        status, reason = _judged(ended, found, folder, place.limits)
        kept = keep(folder / KEPT, place.artefacts, task.key)
        told = {name: value for name, value in found.items() if name not in ("status", "reason")}
        told |= {"kept": kept} if kept else {}
        told |= {name: ended[name] for name in ("peak", "used", "cpu") if name in ended}
        return row_of(task, status, reason, **told, seconds=round(time.monotonic() - started, 3))


def _judged(
    ended: Mapping[str, Any], found: Mapping[str, Any], folder: Path, limits: Limits
) -> tuple[str, str]:
    """The status and the reason: the worker's own, unless it never came to its end."""
    stage = ended.get("stage") or "starting"
    bounds = {
        "hung": f"its time of {limits.seconds:g} s was over",
        "memory": f"it used more than {limits.memory >> 20} MB of memory",
        "disk": f"it wrote more than {limits.disk >> 20} MB, or the disk is full",
        "processes": f"it had started more than {limits.processes} processes",
    }
    why = ended.get("why", "")
    if ended.get("code") == -signal.SIGXFSZ:  # one file was to be larger than all may be together
        why = "disk"
    if why:
        return why, f"Stopped while {stage}: {bounds[why]}."
    if ended.get("code") == 0 and found.get("status") in STATUSES:
        return found["status"], str(found.get("reason", ""))
    code = ended.get("code")
    if code is None:
        how = "its guard was killed"
    elif code < 0:
        how = f"it died with signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"it ended with exit code {code}"
    words = _last_words(folder)
    return "crashed", f"Ended while {stage}: {how}." + (f" {words}" if words else "")


def _guarded(folder: Path, place: Place, strangers: bool) -> dict[str, Any]:
    """How the guard says that the task ended; nothing where the guard did not live to say it."""
    spec = {
        "command": [*place.command, str(folder)],
        "environment": _environment(folder, place, strangers),
        "folder": str(folder),
        "limits": asdict(place.limits),
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with _guarding:
        _guards.add(process)
    said = b""
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write((json.dumps(spec) + "\n").encode())
            process.stdin.flush()
        said = process.stdout.read()
    finally:
        with _guarding:
            _guards.discard(process)
            _let_go(process)
        process.stdout.close()
        process.wait()
        if not said:
            end_marked(folder)
    ended: dict[str, Any] = json.loads(said) if said else {}
    return ended


def let_go() -> None:
    """End all tasks of this process: nobody waits for them any more."""
    with _guarding:
        for process in _guards:
            _let_go(process)


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """A guard hears the end of its input, and ends its task."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _environment(folder: Path, place: Place, strangers: bool) -> dict[str, str]:
    """The user's own, with the folder for temporary things inside of the task's.

    What we emit shares most of what it builds, which is built once in the user's cache. A
    candidate of somebody's has caches of its own, in which it can leave nothing for others.
    """
    scratch = folder / "tmp"
    scratch.mkdir()
    found = {**os.environ, **place.environment, "TMPDIR": str(scratch)}
    paths = [str(PACKAGE.parent), *found.get("PYTHONPATH", "").split(os.pathsep)]
    found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    found["KERNELWRIGHT_LOCKS"] = os.environ.get("KERNELWRIGHT_LOCKS", tempfile.gettempdir())
    found["KERNELWRIGHT_THREADS"] = str(place.threads)
    for name in CACHES if strangers else ():
        found[name] = str(folder / "cache" / name.lower())
    return found


def end_marked(folder: Path) -> None:
    """End what a killed guard has left: all that bears the folder of its task."""
    mark = f"TMPDIR={folder}/".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path("/proc", name, "environ").read_bytes():
                    os.kill(int(name), signal.SIGKILL)


@contextlib.contextmanager
def _folder(scratch: str | None) -> Iterator[Path]:
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="kernelwright-task-", dir=scratch)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, onerror=_opened)


def _opened(function: Any, path: str, error: Any) -> None:
    """A task may have closed a folder behind it."""
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700)
        function(path)


def _result(folder: Path) -> dict[str, Any]:
    path = folder / RESULT
    with contextlib.suppress(OSError, ValueError):
        if path.lstat().st_size <= MOST_RESULT and not path.is_symlink():
            found = json.loads(path.read_text())
            return found if isinstance(found, dict) else {}
    return {}


def _last_words(folder: Path) -> str:
    with contextlib.suppress(OSError), (folder / LOG).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        text = file.read().decode(errors="replace").replace(str(folder), "")
        return " ".join(_printable(text.splitlines()))
    return ""


def _printable(lines: Sequence[str]) -> list[str]:
    kept = ["".join(c for c in line if c.isprintable()).strip() for line in lines]
    return [line[:300] for line in kept if line][-LAST_LINES:]
