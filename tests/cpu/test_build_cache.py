"""The build of an emitted file survives what happens to builds: company, kills, damage, full disks.

Each process runs one emitted file, most of them as forks of a Python that has imported torch. The
compiler is a script around the real one, which counts, can be made to hang, and gives the same
object for the same text and flags.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checking import LOAD
from filelock import FileLock
from nursery import Born, Nursery

from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem
from kernelwright.toolchain import compiler

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1) * 2.0

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""
CHECK = """
x = torch.arange(32.0).reshape(4, 8)
assert torch.allclose(ModelNew()(x), Model()(x)), "wrong"
"""
SOURCES = Path(__file__).parents[2] / "src"
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # of linux/prctl.h, capability.h
LIBRARIES = UNITS = 1
COMPILER = """#!/bin/sh
case " $* " in *" -c "*)
  echo "$$" >> "$PLACE/compiled"
  while [ -e "$PLACE/hang" ]; do sleep 0.05; done
  before= flags=
  for word; do
    case "$before" in -c) source=$word ;; -o) object=$word ;; *) flags="$flags $word" ;; esac
    before=$word
  done
  kept="$OBJECTS/$({{ echo "$flags"; cat "$source"; }} | sha256sum | cut -c1-64)"
  if [ -e "$kept" ]; then exec cp "$kept" "$object"; fi
  {real} "$@" || exit
  cp "$object" "$kept.$$" && mv "$kept.$$" "$kept"
  exit
esac
exec {real} "$@"
"""


class Place:
    """A folder with an emitted file, a compiler, and a cache that is empty at first."""

    def __init__(self, folder: Path, emitted: str, script: Path, nursery: Nursery) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.root, self.nursery = folder, folder / "cache", nursery
        self.file = folder / "emitted.py"
        self.file.write_text(emitted + CHECK)
        kept = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "XDG_CACHE_HOME")}
        self.environment = {**kept, "TORCH_EXTENSIONS_DIR": str(self.root), "CXX": str(script)}
        self.environment |= {
            "OMP_NUM_THREADS": "1",
            "PLACE": str(folder),
            "OBJECTS": str(script.parent),
        }

    def start(self) -> Born:
        return self.nursery.bear(self.file, self.environment)

    def run(self) -> str:
        """What the process complained of, or nothing."""
        return self.start().outcome()

    def run_limited(self, before: Callable[[], None]) -> str:
        """The same for a plain Python: some limits hold from its start on."""
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(self.file)],
            env=self.environment, preexec_fn=before, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    @property
    def compilations(self) -> int:
        log = self.folder / "compiled"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def libraries(self) -> list[Path]:
        return sorted(self.root.rglob("*.so"))


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = tmp_path_factory.mktemp("model") / "model.py"
    model.write_text(MODEL)
    return compile_problem(load_problem(model, "cpu")).source


@pytest.fixture(scope="module")
def script(extensions: Path) -> Path:
    """The compiler. Which one it is becomes part of a build's name: one for all places."""
    path = extensions.with_name("objects") / "compiler"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_name("guard")):
        if not path.exists():
            path.write_text(COMPILER.format(real=compiler()))
            path.chmod(0o700)
    return path


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@pytest.fixture
def place(tmp_path: Path, emitted: str, script: Path, nursery: Nursery) -> Place:
    return Place(tmp_path, emitted, script, nursery)


def test_eight_processes_at_once_build_once(place: Place) -> None:
    processes = [place.start() for _ in range(8)]
    assert [p.outcome() for p in processes] == [""] * 8
    assert place.compilations == UNITS and len(place.libraries) == LIBRARIES


def test_a_killed_builder_blocks_nobody(place: Place) -> None:
    (place.folder / "hang").touch()
    killed = place.start()
    deadline = time.monotonic() + 120
    while not place.compilations and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.outcome() == "it was killed"
    (place.folder / "hang").unlink()
    assert place.run() == ""
    assert len(place.libraries) == LIBRARIES


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_library_is_built_again(damage: str, place: Place) -> None:
    assert place.run() == ""
    library = place.libraries[0]
    content = library.read_bytes()
    if damage == "truncated":
        library.write_bytes(content[: len(content) // 2])
    else:
        library.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert place.run() == ""
    assert place.compilations == 2 * UNITS and library.stat().st_size == len(content)


def test_other_flags_and_compilers_are_other_builds(place: Place) -> None:
    compiler = shutil.copy2(place.environment["CXX"], place.folder / "compiler")
    place.environment["CXX"] = str(compiler)
    assert place.run() == "" and place.run() == ""
    assert place.compilations == UNITS
    text = place.file.read_text()
    assert '"-O3"' in text
    place.file.write_text(text.replace('"-O3"', '"-O2"'))
    assert place.run() == ""
    os.utime(compiler, (1, 1))  # as an upgrade leaves another file there
    assert place.run() == ""
    assert place.compilations == 3 * UNITS
    assert len(place.libraries) == 3 * LIBRARIES


def test_a_cache_that_another_processor_filled(place: Place) -> None:
    """On a shared home: a library with instructions that are not here is never opened."""
    told = place.folder / "cpuinfo"
    text = place.file.read_text()
    assert text.count('"/proc/cpuinfo"') == 2
    place.file.write_text(text.replace('"/proc/cpuinfo"', repr(str(told))))
    machines = ("sse2 avx2 avx512f amx_bf16", "sse2", "sse2 avx2")
    for count, flags in enumerate(machines, 1):
        told.write_text(f"processor : 0\nflags : {flags}\n")
        assert place.run() == "" and place.run() == ""
        assert len(place.libraries) == place.compilations == count
    told.write_text(f"processor : 0\nflags : {machines[0]}\n")
    assert place.run() == "" and place.compilations == len(machines)


def test_a_full_disk_leaves_nothing_that_is_believed(place: Place) -> None:
    """A file may have 4 KB: as with a full disk, writes fail in the compiler and in Python."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    place.environment["OBJECTS"] = str(place.folder)  # where there are none yet
    assert "Error" in place.run_limited(limit)
    assert not place.libraries
    assert place.run() == ""


def test_a_home_that_cannot_be_written(place: Place) -> None:
    """Emitted files build in a private folder elsewhere, and the package keeps its files there."""
    home, spare = place.folder / "home", place.folder / "spare"
    home.mkdir(mode=0o500)
    spare.mkdir()
    del place.environment["TORCH_EXTENSIONS_DIR"]
    place.environment |= {"HOME": str(home), "TMPDIR": str(spare)}
    assert place.run_limited(without_privileges) == ""
    (private,) = spare.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    assert len(list(private.rglob("*.so"))) == LIBRARIES
    place.environment["PYTHONPATH"] = str(SOURCES)
    place.file.write_text(
        f"from kernelwright import cache\nassert str(cache.root()) == {str(private)!r}"
    )
    assert place.run_limited(without_privileges) == ""


def without_privileges() -> None:
    """Root may write anywhere: it gives that up, for the process that is started next."""
    if os.getuid() == 0:
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


@pytest.mark.parametrize("name", ["$HOME ${x} $", 'it\'s "quoted"', "a b;c&d", "back\\slash:colon"])
def test_odd_paths(name: str, tmp_path: Path, emitted: str, script: Path, nursery: Nursery) -> None:
    """Of the cache and of the file itself; the compiler stands elsewhere, as it would."""
    plain = Place(tmp_path / "plain", emitted, script, nursery)
    odd = tmp_path / name
    odd.mkdir()
    plain.file = Path(shutil.move(plain.file, odd / f"{name}.py"))
    plain.root = odd / "cache"
    plain.environment["TORCH_EXTENSIONS_DIR"] = str(plain.root)
    assert plain.run() == ""
    assert len(plain.libraries) == LIBRARIES


def test_an_interpreter_that_ends_leaves_nothing_half_built(place: Place) -> None:
    assert place.run_limited(lambda: None) == ""
    assert len(place.libraries) == LIBRARIES
