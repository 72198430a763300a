"""Completion scripts: bash really completes with one, and the others are read by their shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernelwright.arguments import parser
from kernelwright.cli import COMMANDS, main
from kernelwright.completion import SHELLS, read, script

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


def complete(tmp_path: Path, *words: str) -> set[str]:
    """What bash offers for the last word, with files a.py and b.txt in the folder."""
    for name in ("a.py", "b.txt"):
        (tmp_path / name).touch()
    listed = " ".join(f"'{word}'" for word in ("kernelwright", *words))
    code = (
        f"{script(parser(), 'bash')}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words)}\n"
        '_kernelwright; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("opt",), {"optimize"}),
        (("",), set(COMMANDS) | {"completion"}),
        (("--v",), {"--version"}),
        (("optimize", ""), {"a.py", "b.txt"}),
        (("optimize", "--device", ""), {"auto", "cpu", "cuda"}),
        (("optimize", "a.py", "--precision", "h"), {"highest", "high"}),
        (("optimize", "a.py", "--no-"), {"--no-verify", "--no-bench"}),
        (("bench", "a.py", "a.py", "--requ"), {"--require-speedup"}),
        (("bench", "--json", "b"), {"b.txt"}),
        (("cache", "c"), {"clean"}),
        (("cache", "clean", "--o"), {"--older-than"}),
        (("completion", "z"), {"zsh"}),
    ],
)
def test_bash_completes(tmp_path: Path, words: tuple[str, ...], offered: set[str]) -> None:
    assert complete(tmp_path, *words) == offered


@needs_bash
def test_every_option_of_every_command_is_offered(tmp_path: Path) -> None:
    for command in read(parser()):
        flags = {flag for option in command.options for flag in option.flags}
        words = (command.name, "-") if command.name else ("-",)
        assert complete(tmp_path, *words) == flags and "--help" in flags


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_a_script_that_the_shell_reads(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("optimize", "require-speedup", "older-than", "highest", "clean"):
        assert word in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(text)
    flag = "--no-execute" if shell == "fish" else "-n"
    subprocess.run([shell, flag, str(tmp_path / "script")], check=True)
