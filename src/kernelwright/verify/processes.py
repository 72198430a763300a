"""The judge's hold on the processes that run user code: started, bounded, heard and ended.

In: nothing but the package itself. Out: a Server and the Processes forked from it, each with a
Channel. Nothing that a process does can hurt more than itself: it has a time, a bound on memory, on
output and on the number of its descendants, a name and an environment that tell it nothing, and it
ends together with all that it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

from kernelwright import spawn
from kernelwright.errors import InternalError
from kernelwright.verify.channel import Channel, Gone, Silent
from kernelwright.verify.sent import Sent
from kernelwright.verify.surroundings import Surroundings

START_SECONDS = 120.0
ENDING_SECONDS = 2.0
KEPT_OUTPUT = 64 << 10
MOST_OUTPUT = 64 << 20
MOST_DESCENDANTS = 400
LOOK_SECONDS = 0.2
MEMORY_SHARE = 0.8  # of what is free when a process starts
LOG_LINES = 15
RARELY = 10  # looks between two at the files
COMPILERS = frozenset(
    [
        *("ninja", "c++", "g++", "gcc", "cc", "clang", "clang++", "cc1plus", "cc1", "as", "ld"),
        *("collect2", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "ld.lld"),
    ]
)
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4

ESCAPES = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?|[^\x09\x0a\x20-\U0010ffff]"
)
BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x7f-\x9f\ud800-\udfff]")


class Starter(Protocol):
    """Where processes come from, and who knows how they ended."""

    @property
    def alive(self) -> bool: ...

    def fork(self, protected: bool, surroundings: Surroundings | None = None) -> Process: ...

    def status(self, pid: int) -> int | None: ...

    def end(self, pid: int) -> int | None: ...


class Ended(Exception):
    """A process ended, or was ended, before it had answered; the message says how."""


class Server:
    """Where processes come from: one interpreter with torch in it that never runs user code."""

    def __init__(self) -> None:
        spawned = spawn.server()
        self.process, self._said = spawned.process, spawned.said
        self.control = Channel(spawned.end)
        self._ready = False
        self._lock = threading.Lock()

    def fork(self, protected: bool, surroundings: Surroundings | None = None) -> Process:
        """A new process; `protected` from others looking into its memory, and so believed.

        One with `surroundings` of its own is kept apart from all others where the kernel can.
        """
        ours, theirs = socket.socketpair()
        log_out, log_in = os.pipe()
        request = {
            "do": "fork",
            "environment": (
                surroundings.environment if surroundings else spawn.neutral_environment()
            ),
            "protected": protected,
            "apart": surroundings is not None and surroundings.apart,
        }
        with self._lock:
            self._wait_until_ready()
            socket.send_fds(self.control.end, [b"f"], [theirs.fileno(), log_in])
            self.control.send(request)
            forked = self._heard()
        theirs.close()
        os.close(log_in)
        log = os.fdopen(log_out, "rb", buffering=0)
        return Process(self, forked["pid"], protected, ours, log, surroundings, forked["apart"])

    def status(self, pid: int) -> int | None:
        return self._ask("status", pid)

    def end(self, pid: int) -> int | None:
        """End a process and all that it left behind; how it had ended, if it had."""
        return self._ask("end", pid)

    def _ask(self, do: str, pid: int) -> int | None:
        with self._lock:
            try:
                self.control.end.sendall(b"m")
                self.control.send({"do": do, "pid": pid})
                status: int | None = self._heard()["status"]
            except (OSError, Gone, Silent):
                return None
        return status

    def _wait_until_ready(self) -> None:
        if not self._ready:
            self._heard()
            self._ready = True

    def _heard(self) -> Any:
        try:
            deadline = time.monotonic() + START_SECONDS
            return self.control.receive(deadline, lambda: self.process.poll() is None)
        except (Gone, Silent) as error:
            self._said.seek(0)
            last = self._said.read()[-2000:]
            raise InternalError(f"The process that starts others has ended. {last}") from error

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the server, which ends its processes first."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10.0)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._said.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Process:
    """A forked process. `broken` says why it was ended, if it was.

    What it sends is `believed` of the one that no candidate can reach.
    """

    def __init__(
        self,
        server: Starter,
        pid: int,
        believed: bool,
        end: socket.socket,
        log: IO[bytes],
        surroundings: Surroundings | None = None,
        apart: bool = False,
    ) -> None:
        self.server, self.pid = server, pid
        self.surroundings, self.apart = surroundings, apart
        self.channel = Channel(end, believed=believed)
        self.broken: str | None = None
        self.output = Output(log, self._flooded)
        self._most_memory = int(MEMORY_SHARE * available_memory())
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def tell(self, value: Any, sent: Sent) -> None:
        """Send a request; Ended if nobody is there."""
        with self._or_ended():
            self.channel.send(value, sent)

    def hear(self, deadline: float, patience: float = math.inf) -> Any:
        """Wait for the answer to a request; Ended or Silent if there is none.

        `patience` is for waiting alone: it rests while everything is stopped, and while compilers
        are at work.
        """
        with self._or_ended():
            return self.channel.receive(deadline, self.alive, patience, self._compiles)

    def _compiles(self) -> bool:
        return any(_command(pid) in COMPILERS for pid in descendants(self.pid))

    @contextlib.contextmanager
    def _or_ended(self) -> Iterator[None]:
        try:
            yield
        except Gone:
            raise Ended(f"the process {self.fate()}") from None
        except OSError as error:
            raise Ended(f"the process {self.fate()} ({error.strerror})") from None

    def alive(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def fate(self) -> str:
        """How it ended, in words."""
        status, deadline = None, time.monotonic() + ENDING_SECONDS
        while status is None and self.server.alive and time.monotonic() < deadline:
            status = self.server.status(self.pid)
            time.sleep(0.0 if status is not None else 0.01)
        if self.broken is not None:
            return self.broken
        if status is None:
            lost = "" if self.server.alive else ", and so did the one that started it"
            return f"ended without a word{lost}" if not self.alive() else "closed its channel"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"ended with exit code {code}"
        return f"died with signal {-code} ({signal.Signals(-code).name})"

    def end(self) -> None:
        self._closed.set()
        self.server.end(self.pid)
        self.channel.close()
        self.output.close()

    def _flooded(self) -> None:
        self._break(f"wrote more than {MOST_OUTPUT >> 20} MB of output")

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def _look(self) -> None:
        """Memory and the number of processes, a few times a second."""
        looks = 0
        while not self._closed.wait(LOOK_SECONDS) and self.broken is None:
            looks += 1
            below = [self.pid, *descendants(self.pid)]
            if len(below) > MOST_DESCENDANTS:
                self._break(f"started more than {MOST_DESCENDANTS} processes")
            elif sum(map(_memory, below)) > self._most_memory:
                self._break(f"used more than {self._most_memory >> 20} MB of memory")
            elif self.surroundings and looks % RARELY == 0 and self.surroundings.overflows():
                self._break("wrote more files than anybody needs")


class Output:
    """What a process prints: read all the time, of which the end is kept."""

    def __init__(self, pipe: IO[bytes], flooded: Callable[[], None]) -> None:
        self._pipe, self._flooded = pipe, flooded
        self._parts: deque[bytes] = deque()
        self._size = self._total = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while part := self._pipe.read(1 << 16):
                self._parts.append(part)
                self._size += len(part)
                self._total += len(part)
                while self._size - len(self._parts[0]) > KEPT_OUTPUT:
                    self._size -= len(self._parts.popleft())
                if self._total > MOST_OUTPUT:
                    self._flooded()

    def close(self) -> None:
        self._thread.join(timeout=0.5)
        if not self._thread.is_alive():
            self._pipe.close()

    def last_words(self) -> str:
        """The stack of a crash, which Python prints most recent call first, else the last lines."""
        self._thread.join(timeout=0.2)
        lines = [
            line[:500]
            for line in printable(b"".join(self._parts).decode(errors="replace")).splitlines()
            if line.strip() and not line.startswith("Extension modules:")
        ]
        crash = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python")), None)
        return "\n".join(lines[-LOG_LINES:] if crash is None else lines[crash:][:LOG_LINES])


def printable(text: str) -> str:
    """Without escape sequences, control characters, half characters and marks of direction."""
    return BIDIRECTIONAL.sub("", ESCAPES.sub("", text.replace("\r", "\n")))


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Meanwhile no other process of the user may look into the memory of this one."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    before = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) if prctl else None
    try:
        if prctl:
            prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        yield
    finally:
        if prctl and before == 1:
            prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def descendants(root: int) -> Iterator[int]:
    """Children as the kernel lists them, and theirs."""
    todo = [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    below = [int(child) for child in file.read().split()]
                yield from below
                todo += below


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def available_memory() -> int:
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62


def _memory(pid: int) -> int:
    """Resident bytes that are the process's own, not shared with the server it was forked from."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
