"""Without a compiler, `optimize` says so in one sentence and leaves nothing behind."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from kernelwright.cli import main
from kernelwright.errors import BuildError
from kernelwright.toolchain import check_toolchain

MODEL = Path(__file__).parents[1] / "models" / "linear_mish_mish.py"


def test_a_missing_compiler_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    output = tmp_path / "out.py"
    code = main(["optimize", str(MODEL), "-o", str(output), "--device", "cpu", "--quiet"])
    said = capsys.readouterr().err
    assert code == BuildError.exit_code
    assert "no-such-compiler" in said and "set CXX" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_missing_headers_of_python_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(BuildError, match=r"Python\.h.*python3-dev"):
        check_toolchain("cpu")
