"""The closed set of errors a user can meet, each with the exit code the command line returns.

Every message is one sentence or two that say what is wrong and what to do next. `where_from` and
`is_ours` tell whose code an unexpected exception came from, by its innermost frames.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from typing import Protocol

PACKAGE = Path(__file__).resolve().parent
LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")


class Proof(Protocol):
    """A certificate, as far as an error has to know it."""

    @property
    def passed(self) -> bool: ...

    @property
    def verdict(self) -> str: ...


class KernelwrightError(Exception):
    """Base of all errors that kernelwright raises on purpose."""

    exit_code = 1


class InternalError(KernelwrightError):
    """Kernelwright itself is wrong: not the user's doing, and worth a report."""

    exit_code = 1


class InputError(KernelwrightError):
    """The model file, its inputs or the command line cannot be used as they are."""

    exit_code = 2


class VerificationError(KernelwrightError):
    """The candidate does not compute the same function as the model, or not as fast as asked."""

    exit_code = 3

    def __init__(self, message: str, certificate: Proof | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate


class NotCertifiedError(VerificationError, AssertionError):
    """What `assert_certified` raises: an AssertionError too, as test suites expect."""


class BuildError(KernelwrightError):
    """The compiler is missing, or refused the generated source."""

    exit_code = 4


class UnsupportedError(KernelwrightError):
    """The model is valid, but outside of what kernelwright can compile."""

    exit_code = 5


def is_ours(error: BaseException) -> bool:
    """Whether the exception came out of kernelwright's own code, not out of the user's.

    Libraries raise on behalf of their callers, so the innermost frame outside of them decides.
    """
    frame = _responsible(error)
    return frame is None or PACKAGE in Path(frame.filename).resolve().parents


def where_from(error: BaseException) -> str:
    """`plan/fuse.py:120`, or the user's file and line: the innermost frame outside of libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frame = _responsible(error)
    if frame is None:
        return "an unknown line"
    path = Path(frame.filename).resolve()
    name = path.relative_to(PACKAGE) if PACKAGE in path.parents else Path(frame.filename)
    return f"{name}:{frame.lineno}"


def _responsible(error: BaseException) -> traceback.FrameSummary | None:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not _in_library(f.filename)]
    return own[-1] if own else None


def _in_library(filename: str) -> bool:
    path = Path(filename).resolve()
    if PACKAGE in path.parents:
        return False
    if filename.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(Path(sysconfig.get_path(k)).resolve() in path.parents for k in LIBRARIES)
