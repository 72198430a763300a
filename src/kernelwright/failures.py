"""Whose fault it was: an unexpected exception becomes an error that says so, with what to report.

In: an exception that nobody raised on purpose. Out: an InputError where the user's own code raised
it, else an InternalError that names our line and a file that was kept for the report.
"""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from kernelwright.cache import keep_for_report
from kernelwright.errors import (
    BuildError,
    InputError,
    InternalError,
    KernelwrightError,
    is_ours,
    where_from,
)
from kernelwright.loading import read_source
from kernelwright.positions import in_file

LINES = 6
BUILDERS = ("_kw_place", "_kw_made")  # of emitted files (emit/runtime.py, runtime/build.py)
RUN_FIRST = "Run it with python first."
BUG = "This is a bug in kernelwright"
REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENAMETOOLONG),
    *(errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
}  # a full or read-only disk, a right or a limit: not our mistake, and nothing to report


def unexpected(error: Exception, model: str | None) -> KernelwrightError:
    """The error to end with; `model` is the path of the model file, if the command had one."""
    if isinstance(error, KernelwrightError):
        return error
    what = f"{type(error).__name__}: {error}"
    if not is_ours(error):
        return InputError(f"{where_from(error)} raised {what}. {RUN_FIRST}")
    if isinstance(error, OSError) and error.errno in REFUSALS:
        where = f" for {error.filename}" if error.filename else ""
        return InputError(
            f"The system refused what kernelwright needs{where}: {error.strerror}. Make room or "
            "give it the right to, and run it again."
        )
    kept = _keep(Path(model)) if model else None
    report = f"Please report it with {kept}" if kept else "Please report it"
    return InternalError(
        f"{BUG} ({where_from(error)}): {what}. {report} and the traceback that "
        "KERNELWRIGHT_DEBUG=1 shows."
    )


@contextlib.contextmanager
def charged_to_us(emitted: Path, name: str) -> Iterator[None]:
    """While an emitted file is used: an error in it is ours, and the file is kept."""
    text = emitted.read_text(encoding="utf-8")
    try:
        yield
    except (InputError, BuildError) as error:
        if str(emitted) not in str(error) and not isinstance(error, BuildError):
            raise
        kept = keep_for_report(name, text)
        shown = str(kept or "the emitted file")
        told = str(error).removesuffix(RUN_FIRST).strip().replace(str(emitted), shown)
        if isinstance(error, BuildError):
            where = f" The emitted file is kept as {kept}." if kept else ""
            raise BuildError(told + where) from error
        raise InternalError(f"{BUG}: {told} Please report it with that file.") from error
    except Exception as error:
        refused = isinstance(error, OSError) and error.errno in REFUSALS
        if isinstance(error, KernelwrightError) or not is_ours(error) or refused or debugging():
            raise
        kept = keep_for_report(name, text)
        what = f"{type(error).__name__}: {error}"
        raise InternalError(
            f"{BUG} ({where_from(error)}): {what}. Please report it with {kept or 'its text'}."
        ) from error


def debugging() -> bool:
    return bool(os.environ.get("KERNELWRIGHT_DEBUG"))


def _keep(model: Path) -> Path | None:
    """A copy of the model, as it was when it failed."""
    try:
        return keep_for_report(model.stem, read_source(model))
    except (OSError, KernelwrightError):
        return None


def build_failure(error: BaseException, path: Path | None = None, text: str = "") -> str | None:
    """What the compiler or the system said, if the exception came out of building an extension.

    With the file whose text was compiled, at the lines where it is wrong.
    """
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, BuildError) or _is_from_builder(chain):
            said = str(error)
            return (in_file(said, str(path), text) if path else None) or _relevant_lines(said)
        chain = chain.__cause__ or chain.__context__
    return None


def _is_from_builder(error: BaseException) -> bool:
    """Torch's, or the emitted file's own, which finds no room or no right to write a library."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename.endswith("cpp_extension.py") for frame in frames):
        return True
    return isinstance(error, OSError) and any(frame.name in BUILDERS for frame in frames)


def _relevant_lines(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    relevant = [line for line in lines if "error" in line.lower()] or lines
    return "\n".join(relevant[:LINES])
