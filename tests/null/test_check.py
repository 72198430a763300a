"""kernelwright check: the library in an emitted file is the package's, or what is not is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import checking
import pytest

from kernelwright import __version__, check
from kernelwright.check import check_file
from kernelwright.cli import main
from kernelwright.emit import library
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem

MODEL = checking.TESTS / "models" / "linear_gelu_softmax.py"
CLASHING = """
import os.path as os
from torch import *

hashlib = FUSION = _launch = max = len = "the user's"
"""


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def source(request: pytest.FixtureRequest) -> str:
    return compile_problem(load_problem(MODEL, "cpu"), target=request.param).source


@pytest.fixture
def file(source: str, tmp_path: Path) -> Path:
    path = tmp_path / "model_new.py"
    path.write_text(source)
    return path


def statuses(path: Path) -> dict[str, str]:
    return {f.part: f.status for f in check_file(path).findings}


def test_an_emitted_file_is_the_packages(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert statuses(file) == {"Python": "identical", "C++": "identical"}
    assert main(["check", str(file), "--json", "-", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["package"] == __version__ and len(told["findings"]) == 2


def test_it_is_not_run(file: Path) -> None:
    file.write_text("raise SystemExit(3)\n" + file.read_text())
    assert set(statuses(file).values()) == {"identical"}


@pytest.mark.parametrize(
    ("part", "line", "changed"),
    [
        ("Python", "    return untraceable if", "    return None if"),
        ("Python", "class _kw_Memo:\n", "class _kw_Memo:\n    evil = 1\n"),
        ("C++", "namespace kw {", "namespace kw { inline int evil = 1; "),
        ("C++", "return x == x ? value : x", "return x == x ? x : value"),
        ("C++", "// Comparison and choice", "// Comparison and a choice"),
    ],
)
def test_a_changed_line_is_found(
    file: Path, source: str, part: str, line: str, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in source
    file.write_text(source.replace(line, changed, 1))
    others = {"Python", "C++"} - {part}
    assert statuses(file) == {part: "edited", **dict.fromkeys(others, "identical")}
    assert main(["check", str(file)]) == 3
    number = source[: source.index(line)].count("\n") + 1
    assert re.search(rf"line ({number}|{number + 1})\b", capsys.readouterr().err)


def test_a_changed_line_under_a_new_hash_is_found(file: Path, source: str) -> None:
    """Whoever changes the hash as well is found by the comparison with the package."""
    source = source.replace("    return untraceable if", "    return None if", 1)
    python = next(s for s in library.sections(source) if s.seal and s.seal["language"] == "Python")
    assert python.seal is not None
    file.write_text(source.replace(python.seal["seal"], python.digest))
    assert statuses(file)["Python"] == "different"
    assert main(["check", str(file)]) == 3


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: re.sub(r"sha256 [0-9a-f]{4}", "sha256 0000", s),
        lambda s: s.replace("Identical to the package;", "Nearly the package;", 1),
        lambda s: s.replace(" The library, in Python", " The helpers, in Python"),
    ],
)
def test_a_changed_banner_is_found(file: Path, source: str, edit: object) -> None:
    assert callable(edit)
    file.write_text(edit(source))
    assert "edited" in statuses(file).values()
    assert main(["check", str(file)]) == 3


def test_a_second_library_is_found(file: Path, source: str) -> None:
    """Code that hides under a banner of its own."""
    banner = library.library_section(5, "Python", "cpu")
    hidden = library.sealed(f"{_banner('The fused model')}\n{banner}\n\nx = 1\n")
    at = source.index(". At import")
    at = source.rindex(library.RULE, 0, at)
    file.write_text(source[:at] + hidden.split("\n", 3)[3] + "\n\n" + source[at:])
    assert "edited" in [f.status for f in check_file(file).findings]


def _banner(title: str, number: int = 2) -> str:
    return library.section(number, title)


def test_another_version_is_asked_for(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "__version__", "9.9")
    assert set(statuses(file).values()) == {"other version"}
    assert main(["check", str(file)]) == 2
    assert f"pip install kernelwright=={__version__}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x = 1\n", "not python (", "\x00"])
def test_other_files_have_no_library(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.py"
    path.write_text(text)
    assert main(["check", str(path)]) == 2
    assert main(["check", str(tmp_path / "missing.py")]) == 2
    assert "no library of kernelwright's" in capsys.readouterr().err


def test_renamed_imports_and_builtins_are_followed(tmp_path: Path) -> None:
    """The user's names push ours aside; the library is still known to be the package's."""
    model = tmp_path / "model.py"
    model.write_text(CLASHING + MODEL.read_text())
    source = compile_problem(load_problem(model, "cpu")).source
    assert "import os as _kw_os" in source and "len as _kw_len" in source
    path = tmp_path / "model_new.py"
    path.write_text(source)
    assert set(statuses(path).values()) == {"identical"}


def test_an_emitted_file_that_is_compiled_again(source: str, file: Path, tmp_path: Path) -> None:
    """Its library is the inner one's and its own; the last one counts, under another prefix."""
    inner = source.replace("= _kw_build()", "= None").replace("ModelNew", "Renamed")
    model = tmp_path / "again.py"
    model.write_text(inner)
    again = compile_problem(load_problem(model, "cpu"), target="cpu").source
    assert "def _kw2_fused(" in again
    path = tmp_path / "again_new.py"
    path.write_text(again)
    assert set(statuses(path).values()) == {"identical"}


def test_a_model_without_kernels(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    text = MODEL.read_text()
    forward = text[text.index("    def forward") : text.index("\n\n\n", text.index("def forward"))]
    model.write_text(
        text.replace(forward, "    def forward(self, x):\n        return torch.sort(x)[0]")
    )
    source = compile_problem(load_problem(model, "cpu")).source
    path = tmp_path / "model_new.py"
    path.write_text(source)
    assert statuses(path) == {"Python": "identical"}
