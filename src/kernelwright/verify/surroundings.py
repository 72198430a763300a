"""What a candidate has of the machine besides its own file.

In: its text. Out: a home and a folder for temporary files that nobody has used before and nobody
will, and the environment that names them; and what was written there. So neither does it meet what
another one has left, nor does it leave anything to the next. Builds of emitted files alone stay
where they are kept: their folders are named by all that they are built of.
"""

from __future__ import annotations

import os
import re
import site
import tempfile
from pathlib import Path

from kernelwright import cache, spawn

EMITTED = re.compile(r"\A# -+\n# ModelNew is Model, faster: written by kernelwright ")
# Where compilers keep what they have made, at the first call or at any later one.
BUILDS = re.compile(
    r"(^|/)(\.cache|\.triton|\.nv|\.config|torchinductor_[^/]*|torch_extensions[^/]*|__pycache__|"
    r"triton[^/]*|tmp[a-z0-9_]{8})(/|$)"
)
PLACES = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
MOST_BYTES, MOST_FILES = 8 << 30, 50_000


class Surroundings:
    """A folder for all processes of one candidate, until it is closed.

    `apart` if they are to be kept from other processes as well. Not on a GPU, whose driver has not
    been tried there.
    """

    def __init__(self, text: str | None, apart: bool) -> None:
        self.apart = apart
        self._folder = tempfile.TemporaryDirectory(prefix="u", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        home = self.path / "home"
        kept = Path.home() / ".cache"  # data that was downloaded once
        mine = {
            "HOME": str(home),
            "TMPDIR": str(self.path / "tmp"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local" / "share"),
            "XDG_STATE_HOME": str(home / ".local" / "state"),
        }
        for name in ("HOME", "TMPDIR"):
            Path(mine[name]).mkdir(mode=0o700)
        data = {
            "TORCH_HOME": str(kept / "torch"),
            "HF_HOME": str(kept / "huggingface"),
            "PYTHONUSERBASE": site.getuserbase(),
        }
        self.environment = {**data, **spawn.neutral_environment(), **mine}
        for name in PLACES:
            self.environment.pop(name, None)
        if text is None or EMITTED.match(text):
            self.environment["TORCH_EXTENSIONS_DIR"] = str(cache.root().absolute())

    def written(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file there, but for those of compilers."""
        return {
            path: (found.st_size, found.st_mtime_ns)
            for path, found in _files(str(self.path))
            if not BUILDS.search(path)
        }

    def overflows(self) -> bool:
        """Whether more was written than anybody needs."""
        count = size = 0
        for _, found in _files(str(self.path)):
            count, size = count + 1, size + found.st_blocks * 512
            if count > MOST_FILES or size > MOST_BYTES:
                return True
        return False

    def close(self) -> None:
        self._folder.cleanup()


def _files(root: str) -> list[tuple[str, os.stat_result]]:
    """Paths below a folder, with what is known of them; links are not followed."""
    found = []
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            try:
                found.append((os.path.relpath(path, root), os.lstat(path)))
            except OSError:
                continue
            if len(found) > MOST_FILES:
                return found
    return found
