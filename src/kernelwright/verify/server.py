"""The fork server: a process that has imported torch and nothing of the user's, and forks.

In: requests of the judge over a socket. Out: processes that are ready at once, each with a socket
of its own to the judge, and the ends they came to. Whatever a process started and left behind comes
back to the server, which is a subreaper, and is ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  the optimizers import it: once, for all processes

from kernelwright.verify import seat
from kernelwright.verify.channel import Channel, Gone

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
ENDING_SECONDS = 5.0
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
APART = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MOST_FILES, LARGEST_FILE = 4096, 64 << 30


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
            request["apart"] = request["apart"] and self._has_namespaces
            return {"pid": self._fork(request, fds), "apart": request["apart"]}
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

    @functools.cached_property
    def _has_namespaces(self) -> bool:
        """Whether the kernel lets us, found out by a process that does nothing else."""
        pid = os.fork()
        if pid == 0:
            _control(PR_SET_DUMPABLE, 1)  # or /proc/self is not ours
            os._exit(0 if _in_namespaces() else 1)
        return os.waitpid(pid, 0)[1] == 0

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
        if request["apart"]:
            _go_apart(own)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        sys.argv[:] = [""]
        faulthandler.enable()
        seat.main(socket.socket(fileno=own))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _go_apart(own: int) -> None:
    """Returns in a process that sees no other one of the machine, cannot reach one, nor a network.

    Between it and us are three: its parent, which is there to be killed; the first of its
    namespace, which nobody in it can kill, and with which all others of it end; and this one.
    """
    if not _in_namespaces():
        return
    ours, theirs = os.pipe()
    if first := os.fork():
        os.close(own)
        os.close(theirs)
        os.waitpid(first, 0)
        told = os.read(ours, 4)
        _end_as(int.from_bytes(told, "big") if told else signal.SIGKILL)
    os.close(ours)
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount_proc()
    if parent := os.fork():
        os.close(own)
        os.write(theirs, _status_of(parent).to_bytes(4, "big"))
        os._exit(0)
    os.close(theirs)
    if last := os.fork():
        os.close(own)
        _end_as(_status_of(last))


def _status_of(child: int) -> int:
    """How a child ended, and all that came to this process from others meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end_as(status: int) -> NoReturn:
    """As the process did that had this status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # nobody may handle SIGKILL, nor has to
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _in_namespaces() -> bool:
    """Namespaces of its own for this process and its children, in which it is the same user."""
    user, group = os.getuid(), os.getgid()
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(APART):
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1")):
            Path("/proc/self", name).write_text(text)
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except (OSError, AttributeError):
        return False
    return True


def _mount_proc() -> None:
    """The processes of the namespace alone, where a container does not forbid it."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        libc.mount(b"proc", b"/proc", b"proc", 0, None)


def _set_limits() -> None:
    """No core files, so many open ones; and if memory runs out, this process is the one to go."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for what, most in ((resource.RLIMIT_NOFILE, MOST_FILES), (resource.RLIMIT_FSIZE, LARGEST_FILE)):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _control(option: int, value: int) -> None:
    """prctl, where there is one; what it does is a second line of defence."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
