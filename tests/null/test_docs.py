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
WRITTEN = ROOT / "docs" / "reference" / "files.md"  # when the site is built
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if path != WRITTEN]
FOLDERS = ("src", "tests", "docs", "examples", "benchmarks")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
FILE_NAME = re.compile(r"(?<![\w./~-])[\w./-]*\w\.(?:py|md|cuh|cu|hpp|cpp|toml)\b")
SUFFIXES = (".py", ".cuh", ".hpp", ".cu", ".cpp")
# Files that a reader is to think of, not to find.
IMAGINED = {"model_new.py", "candidate.py", "MODEL_new.py", "NAME.cuh", "NAME.hpp"} | {
    *("net.py", "net_new.py", "use.py", "broken.py", "one.py", "two.py", "file.py"),
    *("blocks.py", "attention_new.py", "old_new.py", "anything.py", "PROBLEM-fast.py"),
    "level_1_problem_2_sample_0_kernel.py",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
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


@pytest.mark.parametrize("name", ["make_figures", "make_worked_example"])
def test_generated_text_is_what_the_script_gives(name: str, request: pytest.FixtureRequest) -> None:
    for path, text in script(name).generated().items():
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.read_text() == text, (
            f"{name_of(path)} is out of date: run docs/{name}.py --write and review it"
        )


def test_no_figure_of_speed_is_typed_by_hand() -> None:
    """Outside of what make_figures.py writes, the README has no times, ratios or rates."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"<!-- (\w+):start -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
    assert not re.findall(r"\d[\d.]*(?:x| ms| us| TB/s|%)\b|\d[\d.]* times", text)


def test_the_readme_fits_a_page_or_two() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 200


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


def test_the_map_names_every_source_file() -> None:
    """It is made of the sentences that files begin with, so each has to begin with one."""
    files = {p for p in PACKAGE.rglob("*.*") if p.suffix in SUFFIXES}
    told = script("make_file_map").sentences()
    assert set(told) == files
    silent = [name_of(p) for p, sentence in told.items() if len(sentence.split()) < 2]
    assert not silent, f"these files do not begin with what they are: {silent}"
    page = script("make_file_map").page()
    assert all(f"| `{p.name}` |" in page for p in files)


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {p.parent.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")}
    missing = [f for f in folders - {"."} if f"`{f.split('/')[-1]}/`" not in text]
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
    commands = (ROOT / "README.md").read_text().split("## From a checkout")[1].split("```")[1]
    assert commands.split("\n")[1:-1] == ["make demo", "make test"]


def test_exit_codes_are_those_of_the_errors() -> None:
    from kernelwright import errors

    kinds = [e for e in vars(errors).values() if isinstance(e, type)]
    codes = {0, *(e.exit_code for e in kinds if issubclass(e, errors.KernelwrightError))}
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    table = re.findall(r"^\| (\d) \| ", page, re.MULTILINE)
    assert [int(code) for code in table] == sorted(codes)
