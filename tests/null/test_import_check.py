"""Before a file is called written, a plain Python imports it elsewhere; failures have an owner."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import checking
import pytest

from kernelwright import commands, import_check
from kernelwright.errors import InputError, KernelwrightError
from kernelwright.import_check import check_imports, import_failure

GOOD = "class Model:\n    value = 1\n\n\nclass ModelNew(Model):\n    value = 2\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file(tmp_path: Path) -> None:
    check_imports(write(tmp_path / "new.py", GOOD))
    assert list(tmp_path.iterdir()) == [tmp_path / "new.py"]


@pytest.mark.parametrize(
    ("text", "kind", "last", "line"),
    [
        ("x = 1\nundefined\n", "NameError", "NameError: name 'undefined' is not defined", 2),
        ("x = 1\n\ny = (\n", "SyntaxError", "SyntaxError: '(' was never closed", 3),
        ("x = 1\n", "AttributeError", "has no attribute 'ModelNew'", None),
        ("import sys\nsys.exit(3)\n", "SystemExit", "SystemExit: 3", 2),
        ("import os\nos._exit(3)\n", "", "the process ended with exit code 3", None),
        ("def f():\n    1 / 0\n\nf()\n", "ZeroDivisionError", "division by zero", 2),
        ("import beside\n", "ModuleNotFoundError", "No module named 'beside'", 1),
    ],
)
def test_failures_are_named(
    text: str, kind: str, last: str, line: int | None, tmp_path: Path
) -> None:
    write(tmp_path / "beside.py", "x = 1\n")
    failure = import_failure(write(tmp_path / "new.py", text), "ModelNew")
    assert failure is not None
    assert (failure.kind, failure.line) == (kind, line)
    assert last in failure.last


def test_our_own_failure_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    emitted = write(tmp_path / ".new.py", GOOD + "größe = undefined\n")
    original = write(tmp_path / "model.py", GOOD)
    with pytest.raises(KernelwrightError) as caught:
        check_imports(emitted, original)
    assert caught.value.exit_code == 1
    text = str(caught.value)
    assert "kernelwright's own mistake: NameError: name 'undefined' is not defined" in text
    assert "(line 7: `größe = undefined`)" in text
    (kept,) = (tmp_path / "cache" / "kw_failed").glob("new_*.py")
    assert str(kept) in text
    assert kept.read_bytes() == emitted.read_bytes()


def test_the_users_failure_is_the_users(tmp_path: Path) -> None:
    text = "import beside\n" + GOOD
    original = write(tmp_path / "model.py", "\n" + text)
    with pytest.raises(InputError) as caught:
        check_imports(write(tmp_path / "new.py", text), original)
    assert "model.py cannot be imported from another directory" in str(caught.value)
    assert "(line 2: `import beside`)" in str(caught.value)


def test_the_process_does_not_know_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [str(import_check.PACKAGE_ROOT), "", str(tmp_path / "mine")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    assert import_check._environment("x")["PYTHONPATH"] == str(tmp_path / "mine")


def test_optimize_writes_nothing_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_check.tempfile, "gettempdir", lambda: str(tmp_path))
    whole = commands.compile_file

    def broken(*args: Any) -> Any:
        compiled = whole(*args)
        return replace(compiled, source=compiled.source + "\nundefined\n")

    monkeypatch.setattr(commands, "compile_file", broken)
    model = checking.TESTS / "models" / "where_scale.py"
    with pytest.raises(KernelwrightError, match="own mistake: NameError"):
        commands.optimize_file(model, tmp_path / "out.py", device="cpu", time_it=False)
    assert not (tmp_path / "out.py").exists()
