"""The standard streams of a command, which may be closed, full, or read by nobody any more.

In: what is printed. Out: one error of ours where results are lost, silence where only words are;
and nothing left in a buffer over which Python would fail when it ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from typing import TextIO

from kernelwright.errors import InputError


def prepare() -> None:
    """Where a command was started without streams (`>&-`), words are lost and results refused.

    A file that is opened later would get the number of the stream, and with it what others write.
    What the encoding of the standard output does not have, as in names of files, is escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            mode = os.O_WRONLY if number == 2 else os.O_RDONLY
            os.open(os.devnull, mode)  # as the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def results(stream: TextIO) -> Iterator[None]:
    """While results are printed to the standard output, where all of them must arrive."""
    try:
        yield
        stream.flush()
    except OSError as error:
        _abandon(stream)
        raise InputError(f"The standard output cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def words() -> Iterator[None]:
    """While something is said on stderr; nobody can be told that it was not heard."""
    try:
        yield
    except OSError:
        _abandon(sys.stderr)


def error(message: str) -> None:
    """One line on stderr, whatever an exception's text looked like."""
    with words():
        print(f"kernelwright: {' '.join(message.split())}", file=sys.stderr, flush=True)


def _abandon(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
