"""torch's own databases of modules and operators, in parts; a run draws some of these.

`python tests/torch_databases.py` is the same for all of them, and writes down what it finds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = 60
FEW = 2  # samples of an entry, where a run draws a part
SCRIPT = Path(__file__).parent.parent / "torch_databases.py"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_wrong(part: int, pytestconfig: pytest.Config) -> None:
    count = 0 if pytestconfig.getoption("--whole") else FEW
    command = [sys.executable, str(SCRIPT), "--jobs", "1", "--shard", f"{part}/{PARTS}"]
    command += ["--samples", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
