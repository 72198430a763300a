"""The newcomer's ten minutes: its files are written and its commands run, in one folder, in order.

A block of `sh` is run line by line; `# exits with N` behind a command is its exit code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "ten-minutes.md").read_text()
FILE = re.compile(r"```\{code-block\} python\n:caption: (\S+)\n\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
CODE = re.compile(r"# exits with (\d+)$")


def steps() -> list[tuple[str, str]]:
    """Files and commands as (name, text) and ("", command), in the order of the page."""
    found = [(m.start(), m[1], m[2]) for m in FILE.finditer(PAGE)]
    for block in SHELL.finditer(PAGE):
        found += [(block.start(), "", line) for line in block[1].splitlines()]
    return [(name, text) for _, name, text in sorted(found, key=lambda step: step[0])]


def test_the_page_has_its_chapters() -> None:
    commands = [text.split() for name, text in steps() if not name]
    ours = {words[1] for words in commands if words[0] == "kernelwright"}
    assert {"explain", "optimize", "bench", "report", "verify", "sweep"} <= ours
    assert {name for name, _ in steps() if name} == {"net.py", "use.py", "broken.py"}


@pytest.mark.slow
def test_every_command_of_the_page_runs(tmp_path: Path, extensions: Path) -> None:
    """Commands of the shell's own, python and kernelwright, as a newcomer's shell has them."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, arguments in (("kernelwright", "-m kernelwright "), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (scripts / name).chmod(0o700)
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
    folder = tmp_path / "work"
    folder.mkdir()
    for name, text in steps():
        if name:
            (folder / name).write_text(text)
            continue
        told = CODE.search(text)
        done = subprocess.run(
            ["sh", "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        expected = int(told[1]) if told else 0
        assert done.returncode == expected, f"{text}\n{done.stdout}\n{done.stderr}"
        if text == "python use.py":
            assert done.stdout == "torch.Size([256, 256]) {}\n"
    assert {"net_new.py", "report.html", "run"} <= {p.name for p in folder.iterdir()}
