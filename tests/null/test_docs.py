"""The documents are true: generated text is up to date, links and file names lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kernelwright"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
FILE_NAME = re.compile(r"(?<![\w./~-])[\w./-]*\w\.(?:py|md|cuh|cu|hpp|cpp|toml)\b")
SUFFIXES = (".py", ".cuh", ".hpp", ".cu", ".cpp")
# Files that a reader is to think of, not to find.
IMAGINED = {"model_new.py", "candidate.py", "MODEL_new.py", "NAME.cuh", "NAME.hpp"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def script() -> ModuleType:
    path = ROOT / "docs" / "make_worked_example.py"
    spec = importlib.util.spec_from_file_location("make_worked_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def known_files() -> tuple[str, ...]:
    return tuple(
        f"/{name_of(path)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")
    ) + tuple(f"/{path.name}" for path in ROOT.iterdir())


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as they are made for its links."""
    plain = (re.sub(r"[^\w\- ]", "", h.lower()) for h in HEADING.findall(path.read_text()))
    return {text.replace(" ", "-") for text in plain}


def test_generated_text_is_what_the_script_gives(request: pytest.FixtureRequest) -> None:
    for path, text in script().generated().items():
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.read_text() == text, (
            f"{name_of(path)} is out of date: run docs/make_worked_example.py --write and review it"
        )


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), f"{name_of(path)} links to {target}"
        assert not anchor or anchor in anchors(found), f"{name_of(path)} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_file_names_exist(path: Path) -> None:
    """A name may be short (`plan/domain.py`): some file's path must end with it."""
    for mention in dict.fromkeys(FILE_NAME.findall(path.read_text())):
        if mention in IMAGINED or Path(mention).name in IMAGINED:
            continue
        wanted = "/" + re.sub(r"^(\.\./|\./)+", "", mention).lstrip("/")
        assert any(f.endswith(wanted) for f in known_files()), f"{name_of(path)} names {mention}"


def test_the_tree_names_every_source_file() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text().split("```text")[2].split("```")[0]
    files = {p.name for p in PACKAGE.rglob("*.*") if p.suffix in SUFFIXES}
    missing = files - set(re.findall(r"\w+\.(?:py|cuh|cu|hpp|cpp)\b", tree))
    assert not missing, f"docs/architecture.md does not mention {sorted(missing)}"


def test_examples_of_contributing_are_real_code() -> None:
    """Every snippet stands somewhere in the sources, up to white space."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    snippets = re.findall(r"```(?:python|cpp)\n(.*?)```", text, re.DOTALL)
    files = [p for f in ("src", "tests") for p in (ROOT / f).rglob("*.*") if p.suffix in SUFFIXES]
    sources = "\n".join("".join(p.read_text().split()) for p in files if p != Path(__file__))
    for snippet in snippets:
        assert "".join(snippet.split()) in sources, f"CONTRIBUTING.md shows {snippet}"


def test_make_targets_exist() -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in DOCUMENTS:
        text = path.read_text()
        named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.M)
        assert set(named) <= set(rules), f"{name_of(path)} names {set(named) - set(rules)}"


def test_a_fresh_machine_needs_two_commands() -> None:
    commands = (ROOT / "README.md").read_text().split("## Two commands")[1].split("```")[1]
    assert commands.split("\n")[1:-1] == ["make demo", "make test"]


def test_exit_codes_are_those_of_the_errors() -> None:
    from kernelwright import errors

    kinds = [e for e in vars(errors).values() if isinstance(e, type)]
    codes = {0, *(e.exit_code for e in kinds if issubclass(e, errors.KernelwrightError))}
    table = re.findall(r"^\| (\d) \| ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [int(code) for code in table] == sorted(codes)
