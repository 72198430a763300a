"""Who has a device: one for itself while it times, or several together that do not.

In: the device that a task uses. Out: locks among all processes of this user on this machine. The
one idea: whoever wants a device alone holds the door, so that nobody new goes in while the others
come out; and those are often at the door. A lock ends with its process. On the CPU the device is
the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

MACHINE = "machine"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus() -> list[str]:
    """The GPUs that a task may be given, by what CUDA calls them; nothing of CUDA is loaded."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name for name in re.split(r"\s*,\s*", visible.strip()) if name not in ("", "-1")]
    found = [re.fullmatch(r"/dev/nvidia(\d+)", path) for path in glob.glob("/dev/nvidia*")]
    return sorted((match[1] for match in found if match), key=int)


def name_of(device: str) -> str:
    """What a task's device is locked as, in the environment that the task has."""
    visible = gpus() if device != "cpu" else []
    return f"gpu-{visible[0]}" if visible else MACHINE


class Device:
    """One task's hold on its device. `told` hears when it begins and ends to wait."""

    def __init__(
        self, name: str, told: Callable[[str], None] | None = None, folder: Path | None = None
    ) -> None:
        safe = re.sub(r"\W", "_", name)
        folder = folder or lock_folder()
        self._door: IO[str] = (folder / f"{safe}.door").open("w")
        self._room: IO[str] = (folder / f"{safe}.room").open("w")
        self._told = told or (lambda word: None)
        self.seconds = 0.0  # that it was had alone

    def enter(self) -> None:
        """To use it with others: nobody times meanwhile."""
        self._through(fcntl.LOCK_SH)

    def pause(self) -> None:
        """Between two steps: whoever waits to time does so now, and not when all are done."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self.enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """To time on it; then with others again."""
        fcntl.flock(self._room, fcntl.LOCK_UN)  # two that kept their place would wait for ever
        self._through(fcntl.LOCK_EX)
        since = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - since
            fcntl.flock(self._room, fcntl.LOCK_SH)

    def _through(self, how: int) -> None:
        self._told("wait")
        try:
            fcntl.flock(self._door, fcntl.LOCK_EX)
            fcntl.flock(self._room, how)
            fcntl.flock(self._door, fcntl.LOCK_UN)
        finally:
            self._told("go")

    def close(self) -> None:
        self._door.close()
        self._room.close()

    def __enter__(self) -> Device:
        self.enter()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lock_folder() -> Path:
    """The same for all sweeps of this user on this machine."""
    folder = Path(os.environ.get("KERNELWRIGHT_LOCKS") or tempfile.gettempdir())
    folder = folder / f"kernelwright-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else.")
    return folder
