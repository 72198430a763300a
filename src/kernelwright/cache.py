"""The cache: built libraries, texts of live modules, files kept for reports, and measurements.

In: the environment. Out: one folder for everything that kernelwright keeps between runs, what is in
it, and a way to clear it. TORCH_EXTENSIONS_DIR may hold other people's builds, so only what bears
our names (`kw_*`, and tiles.json, accuracies.json, processors.json) is ever listed or removed;
emitted files choose the same folder by the same rule (emit/runtime.py). A build in progress holds
the lock `building` in its folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError
from kernelwright.files import write_atomically

BUILD, LIVE, FAILED, GRAPH = "build", "live module", "for a report", "graph"
TILES, ACCURACIES, PROCESSORS = "tiles", "accuracies", "processors"
GUARD = "building"
DAY = 86400.0


def root() -> Path:
    """The folder; it need not exist. The rule is that of emitted files (emit/runtime.py)."""
    wanted = Path(
        os.environ.get("TORCH_EXTENSIONS_DIR")
        or Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kernelwright")
    )
    near = wanted.absolute()
    while not near.exists():
        near = near.parent
    if not near.is_dir() or os.access(near, os.W_OK | os.X_OK):
        return wanted
    return Path(tempfile.gettempdir(), f"kernelwright-{os.getuid()}")


def tiles_file() -> Path:
    return root() / "tiles.json"


def accuracies_file() -> Path:
    return root() / "accuracies.json"


def processors_file() -> Path:
    return root() / "processors.json"


def keep_live(name: str, text: str) -> Path:
    """The emitted text of a live module as a file, so that tracebacks and inspect show it."""
    return _keep("kw_live", name, text)


def kept_graph(key: str) -> dict[str, Any] | None:
    """What is known of a graph with this hash, from this process or another; None: nothing."""
    path = _graph_file(key)
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        os.utime(path)
        return found
    return None


def keep_graph(key: str, found: dict[str, Any]) -> None:
    """For the next process; a folder that cannot be written costs that process its time alone."""
    path = _graph_file(key)
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found))


def _graph_file(key: str) -> Path:
    return root() / "kw_graphs" / f"{key}.json"


def keep_for_report(name: str, text: str) -> Path | None:
    """A text that something went wrong with, under a name that can be told to the user.

    None where it cannot be kept: what went wrong is told all the same.
    """
    with contextlib.suppress(InputError):
        return _keep("kw_failed", name, text)
    return None


def _keep(folder: str, name: str, text: str) -> Path:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = root() / folder / f"{name}_{digest}.py"
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            os.utime(path)
            return path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error) from error
    write_atomically(path, text)
    return path


def unwritable(error: OSError) -> InputError:
    return InputError(
        f"The cache folder {root()} cannot be used ({error.strerror}); set XDG_CACHE_HOME to a "
        "folder that can be written."
    )


@dataclass(frozen=True)
class Entry:
    """One thing in the cache; `used` is when it was last built, loaded or written."""

    kind: str
    path: Path
    bytes: int
    used: float
    busy: bool

    @property
    def days(self) -> float:
        return max(0.0, time.time() - self.used) / DAY

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "days": round(self.days, 3)}


def entries() -> list[Entry]:
    """What is there, by kind and name."""
    found = []
    for path in sorted(root().glob("kw_*")):
        if not path.is_dir() or path.is_symlink():
            continue
        kind = {"kw_live": LIVE, "kw_failed": FAILED, "kw_graphs": GRAPH}.get(path.name)
        inner = [(BUILD, path)] if kind is None else [(kind, p) for p in sorted(path.iterdir())]
        found += [entry for k, p in inner if (entry := _entry(k, p)) is not None]
    files = tiles_file(), accuracies_file(), processors_file()
    notebooks = zip((TILES, ACCURACIES, PROCESSORS), files, strict=True)
    return found + [entry for k, p in notebooks if (entry := _entry(k, p)) is not None]


def _entry(kind: str, path: Path) -> Entry | None:
    """None where somebody else has just removed it."""
    files = [p for p in path.rglob("*") if not p.is_dir()] if path.is_dir() else [path]
    guard = path / GUARD
    try:
        size = sum(p.lstat().st_size for p in files)
        used = (guard if guard.exists() else path).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    with _not_building(path) as free:
        return Entry(kind, path, size, used, not free)


@dataclass(frozen=True)
class Cleaned:
    """What `clean` removed (or would remove), and what it left because it is being built."""

    removed: tuple[Entry, ...]
    busy: tuple[Entry, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.removed)

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(root()),
            "dry_run": self.dry_run,
            "bytes": self.bytes,
            "removed": [entry.to_json() for entry in self.removed],
            "busy": [entry.to_json() for entry in self.busy],
        }


def clean(older_than: float = 0.0, dry_run: bool = False) -> Cleaned:
    """Remove what has not been used for so many days; a build in progress stays."""
    removed: list[Entry] = []
    busy: list[Entry] = []
    for entry in entries():
        if entry.days < older_than:
            continue
        gone = not entry.busy if dry_run else _remove(entry)
        (removed if gone else busy).append(entry)
    return Cleaned(tuple(removed), tuple(busy), dry_run)


def _remove(entry: Entry) -> bool:
    try:
        if entry.kind == BUILD:
            return _remove_build(entry.path)
        if entry.kind in (TILES, ACCURACIES, PROCESSORS):
            from filelock import FileLock

            with FileLock(entry.path.with_suffix(".lock")):
                entry.path.unlink(missing_ok=True)
            entry.path.with_suffix(".lock").unlink(missing_ok=True)
        else:
            entry.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                entry.path.parent.rmdir()  # succeeds for the last one alone
    except OSError as error:
        raise InputError(f"{entry.path} cannot be removed: {error.strerror}.") from error
    return True


def _remove_build(folder: Path) -> bool:
    """Out of the way by one rename, so that whoever builds next finds no half of a folder."""
    with _not_building(folder) as free:
        if not free:
            return False
        doomed = folder.with_name(f"{folder.name}.removed{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    return True


@contextlib.contextmanager
def _not_building(folder: Path) -> Iterator[bool]:
    """Hold the lock of a build's folder meanwhile, if nobody else has it."""
    try:
        guard = os.open(
            folder / GUARD, os.O_RDWR
        )  # not truncated: its time is that of the last use
    except (FileNotFoundError, NotADirectoryError):
        yield True
        return
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(guard)
