"""The fork server: a process that has imported torch and nothing of the user's, and forks.

In: requests of the judge over a socket. Out: processes that are ready at once, each with a socket
of its own to the judge, and the ends they came to. Whatever a process started and left behind comes
back to the server, which is a subreaper, and is ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

import torch._dynamo  # noqa: F401  the optimizers import it: once, for all processes

from kernelwright.verify import seat
from kernelwright.verify.channel import Channel, Gone

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
ENDING_SECONDS = 5.0


def main(fd: int) -> None:
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _control(PR_SET_CHILD_SUBREAPER, 1)
    _control(PR_SET_DUMPABLE, 0)
    control = socket.socket(fileno=fd)
    Server(control).serve()


def alone(fd: int) -> None:
    """A process that was not forked but started by itself, perhaps under a tool that watches it."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _set_limits()
    sys.argv[:] = [""]
    seat.main(socket.socket(fileno=fd))


class Server:
    """`ends` has the exit status of every child that has one, as os.waitpid gives it."""

    def __init__(self, control: socket.socket) -> None:
        self.channel = Channel(control)
        self.known: set[int] = set()
        self.ends: dict[int, int] = {}

    def serve(self) -> None:
        self.channel.send({"pid": os.getpid()})
        waiting = select.poll()  # select knows only the first 1024 files
        waiting.register(self.channel.end, select.POLLIN)
        while True:
            while not waiting.poll(500):
                self._reap()
            try:
                self.channel.send(self._answer())
            except Gone:
                self._end_all()
                os._exit(0)

    def _answer(self) -> dict[str, Any]:
        """One request: a byte, with the files of a process that is to be forked, and a message."""
        data, fds, _, _ = socket.recv_fds(self.channel.end, 1, 2)
        if not data:
            raise Gone
        request = self.channel.receive()
        self._reap()
        if request["do"] == "fork":
            return {"pid": self._fork(request, fds)}
        if request["do"] == "end":
            self._end(request["pid"])
        return {"status": self.ends.get(request["pid"])}

    def _fork(self, request: dict[str, Any], fds: list[int]) -> int:
        pid = os.fork()
        if pid == 0:
            _become(request, fds, self.channel)
        for fd in fds:
            os.close(fd)
        self.known.add(pid)
        return pid

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self.known:
                    self.ends[ended[0]] = ended[1]

    def _end(self, pid: int) -> None:
        """The process, its group, its descendants and what it left behind."""
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline:
            left = _descendants(os.getpid())
            others = {p for p in self.known if p != pid and p not in self.ends}
            kept = others | {d for p in others for d in _descendants(p)}
            doomed = [p for p in left if p not in kept]
            if not doomed:
                break
            for victim in doomed:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(victim, signal.SIGKILL)
            self._reap()
            time.sleep(0.005)
            self._reap()

    def _end_all(self) -> None:
        for pid in list(self.known):
            self._end(pid)


def _descendants(root: int) -> list[int]:
    """All processes below one, zombies excepted."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] != "Z":
                    children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _become(request: dict[str, Any], fds: list[int], control: Channel) -> None:
    """The forked process: alone with its socket and its log, until it has nothing more to do."""
    try:
        control.close()
        os.setsid()
        _control(PR_SET_PDEATHSIG, signal.SIGKILL)
        own, log = fds
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        _set_limits()
        _control(PR_SET_DUMPABLE, 0 if request["protected"] else 1)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv[:] = [""]
        faulthandler.enable()
        seat.main(socket.socket(fileno=own))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _set_limits() -> None:
    """No core files; and if memory runs out, this process is the one to go."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _control(option: int, value: int) -> None:
    """prctl, where there is one; what it does is a second line of defence."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
