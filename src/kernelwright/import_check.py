"""An emitted file is imported by a plain Python, elsewhere, before it is called written.

In: the path of the emitted file, and that of the model it came from. Out: nothing, or an error that
says whose fault it is: ours (exit code 1, and the file is kept for a report), or the user's if the
model's own file fails in the same way. The process knows nothing of kernelwright and stands in an
empty folder. Kernels are not compiled here: verifying does that, and not all files are verified.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelwright.cache import keep_for_report
from kernelwright.errors import InputError, InternalError

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
TIME_LIMIT = 300.0

CHILD = """
import ctypes, importlib.util, json, os, sys, tempfile, traceback, types

class Kernels(ctypes.CDLL):
    "The functions of a library that was not built."
    def __init__(self, path, *mode):
        super().__init__(path if os.path.getsize(path) else None, *mode)
    def __getitem__(self, name):
        return types.SimpleNamespace() if self._name is None else super().__getitem__(name)

def nothing(name, build_directory, **settings):
    open(os.path.join(build_directory, name + ".so"), "wb").close()

path, wanted = sys.argv[1:]
cache = tempfile.TemporaryDirectory()
with open(path, "rb") as file:
    if b"cpp_extension" in file.read():
        import torch.utils.cpp_extension
        extension = torch.utils.cpp_extension
        extension.load = extension.load_inline = nothing
        ctypes.CDLL = Kernels
        os.environ["TORCH_EXTENSIONS_DIR"] = cache.name
spec = importlib.util.spec_from_file_location("imported", path)
module = importlib.util.module_from_spec(spec)
sys.modules["imported"] = module
try:
    spec.loader.exec_module(module)
    getattr(module, wanted)
except BaseException as error:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    last = traceback.format_exception_only(error)[-1].strip()
    json.dump({"kind": type(error).__name__, "last": last, "line": line}, sys.stderr)
    print(file=sys.stderr)
    sys.exit(1)
"""


@dataclass(frozen=True)
class Failure:
    """How an import ended: the last line of the traceback, and the line of the file."""

    kind: str
    last: str
    line: int | None


def check_imports(path: Path, original: Path | None = None) -> None:
    """Raise if a plain Python cannot import the emitted file from another directory."""
    failure = import_failure(path, "ModelNew")
    if failure is None:
        return
    if original is not None:
        own = import_failure(original, "Model")
        if own is not None and (own.kind, own.last) == (failure.kind, failure.last):
            raise InputError(
                f"{original} cannot be imported from another directory: {own.last} "
                f"{_where(original, own)}. Make it find what it needs wherever it is started."
            )
    shown = path.stem.strip(".")
    name = shown.rpartition(".")[0] or shown  # without the number of a staged file
    kept = keep_for_report(name, path.read_text(encoding="utf-8"))
    raise InternalError(
        "The emitted file cannot be imported, which is kernelwright's own mistake: "
        f"{failure.last} {_where(path, failure)}. Please report it"
        + (f" with {kept}." if kept else ".")
    )


def import_failure(path: Path, wanted: str) -> Failure | None:
    """Import a file in a process of its own, and see whether it has the wanted name."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-import-") as elsewhere:
        command = [sys.executable, "-B", "-c", CHILD, str(path.resolve()), wanted]
        try:
            done = subprocess.run(
                command,
                cwd=elsewhere,
                env=_environment(elsewhere),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIME_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Failure("", f"the import did not end within {TIME_LIMIT:.0f} s", None)
    return _failure(done) if done.returncode else None


def _failure(done: subprocess.CompletedProcess[str]) -> Failure:
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    try:
        return Failure(**json.loads(last))
    except (ValueError, TypeError):
        return Failure("", f"the process ended with exit code {done.returncode}: {last}", None)


def _environment(elsewhere: str) -> dict[str, str]:
    """That of the user, without the way to this package, and with a build folder of its own."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [os.path.abspath(e) for e in entries if e and Path(e).resolve() != PACKAGE_ROOT]
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": elsewhere}
    environment["PYTHONPATH"] = os.pathsep.join(kept)
    return environment


def _where(path: Path, failure: Failure) -> str:
    if failure.line is None:
        return f"({path.name})"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    text = lines[failure.line - 1].strip() if failure.line <= len(lines) else ""
    return f"(line {failure.line}: `{text[:120]}`)"
