"""An interpreter of our own, which imports torch while this one is still about to.

In: one end of a socket and a role. Out: a running interpreter that reads our code from its standard
input, under a name and in an environment that tell nothing. A command that will need the server of
verify's processes starts it `ahead`, before its own imports: both then import at the same time.
Nothing in here imports torch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent
NEUTRAL = ROOT / "verify" / "neutral.py"

# Variables that say who is asking; the rest is the user's own environment.
TELLING = re.compile(r"^(KERNELWRIGHT.*|PYTEST.*|_|SUDO_COMMAND|COV_.*|COVERAGE.*)$")

BOOTSTRAP = """
def start():
    space = {{"__name__": {name!r}}}
    exec(compile({text!r}, "<{name}>", "exec"), space)
    space["start"]({root!r}, {name!r}, {fd}, {role!r})
start()
"""


@dataclass(frozen=True)
class Spawned:
    """A server that has been started: the process, our end of its socket, and what it says."""

    process: subprocess.Popen[bytes]
    end: socket.socket
    said: IO[str]


_waiting: list[Spawned] = []


def ahead() -> None:
    """Start a server for whoever asks for the next one."""
    if not _waiting:
        _waiting.append(_started())
        atexit.register(end_waiting)


def server() -> Spawned:
    """The server that was started ahead, or a new one."""
    return _waiting.pop() if _waiting else _started()


def _started() -> Spawned:
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
    return Spawned(begun((), theirs, said, "main"), ours, said)


def end_waiting() -> None:
    """Nobody is to have the server that was started ahead."""
    while _waiting:
        _waiting.pop().process.kill()


def begun(
    prefix: Sequence[str], theirs: socket.socket, said: Any, role: str, **more: str
) -> subprocess.Popen[bytes]:
    """An interpreter that reads our code from its standard input, perhaps behind a tool."""
    name = "m" + secrets.token_hex(4)
    process = subprocess.Popen(
        [*prefix, sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=said,
        stderr=said,
        pass_fds=[theirs.fileno()],
        env={**neutral_environment(), **more},
        start_new_session=True,
    )
    text = NEUTRAL.read_text(encoding="utf-8")
    script = BOOTSTRAP.format(name=name, text=text, root=str(ROOT), fd=theirs.fileno(), role=role)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(script.encode())
        process.stdin.close()
    theirs.close()
    return process


def neutral_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not TELLING.match(name)}
