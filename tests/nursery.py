"""Processes that have torch already: forks of one that has imported it, and nothing of ours.

Importing torch takes two seconds of a core, which tests of builds would spend two dozen times.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVER = """
import json, os, signal, socket, sys, threading, traceback
import torch, torch.utils.cpp_extension

def live(request, out):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    path = request["file"]
    try:
        exec(compile(open(path).read(), path, "exec"), {"__name__": "m"})
        assert not [name for name in sys.modules if name.startswith("kernelwright")]
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join()  # as an interpreter does that ends
        os.write(2, DONE)
    except BaseException:
        traceback.print_exc()
    os._exit(0)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, (*fds,), _, _ = socket.recv_fds(control, 1 << 20, 1)
    if not data:
        break
    pid = os.fork()
    if pid == 0:
        live(json.loads(data), fds[0])
    os.close(fds[0])
    control.send(str(pid).encode())
"""
DONE = b"\0"


@dataclass
class Born:
    """A process in a session of its own; `end` is where all that it says comes out."""

    pid: int
    end: int

    def outcome(self) -> str:
        """What it complained of, or nothing; it and all that it started have ended then."""
        with open(self.end, "rb") as out:
            said = out.read()
        return "" if said.endswith(DONE) else said.decode(errors="replace") or "it was killed"


class Nursery:
    """One such process, which lives as long as this."""

    def __init__(self) -> None:
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", f"DONE = {DONE!r}\n{SERVER}", str(other.fileno())]
        self.process = subprocess.Popen(command, env=kept, pass_fds=[other.fileno()])
        other.close()

    def bear(self, file: Path, environment: Mapping[str, str]) -> Born:
        """A process that runs a file of Python."""
        end, out = os.pipe()
        request = {"file": str(file), "environment": {**environment}}
        socket.send_fds(self.control, [json.dumps(request).encode()], [out])
        os.close(out)
        return Born(int(self.control.recv(64)), end)

    def close(self) -> None:
        self.control.close()
        self.process.wait(timeout=60)
