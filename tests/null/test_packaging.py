"""What is built to be installed: contents of sdist and wheel, and that imports are declared."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = ROOT / "src" / "kernelwright"
# Where a module may only be imported inside of a function, since it comes with an extra.
EXTRAS = {"report", "cluster"}
HOSTS = {"pytest_plugin.py": "pytest"}  # loaded by that library and by nobody else
WRITTEN = {"live_worker"}  # modules that tests write
CALLED = {"PIL": "pillow", "yaml": "pyyaml"}  # distributions, where one is not installed here


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it, not from the checkout.

    Of a copy, in which an earlier build has left nothing that would be packed again.
    """
    folder, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("copy") / "project"
    left = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT, copy, ignore=left)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_sdist_can_be_tested(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    if not (ROOT / ".git").exists():
        pytest.skip("without git nobody knows what belongs to the project")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    wanted = {n for n in listed if n.split("/")[0] in ("src", "tests", "docs", "examples")}
    wanted |= {"Makefile", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", ".ci/run", "LICENSE"}
    assert wanted <= names, sorted(wanted - names)[:10]
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


@pytest.mark.slow
def test_the_wheel_has_the_package_and_no_fixtures(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as file:
        names = set(file.namelist())
        entries = file.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    kept = (".py", ".cuh", ".hpp", ".cpp", ".typed", ".html", ".css", ".js", ".json")
    wanted = {
        p.relative_to(ROOT / "src").as_posix()
        for p in PACKAGE.rglob("*.*")
        if p.name.endswith(kept) and (p.suffix == ".py" or not p.name.startswith("check"))
        if p.is_file() and "__pycache__" not in p.parts
    }
    assert wanted <= names, sorted(wanted - names)
    assert not [name for name in names if "/kernels/check" in name]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"kernelwright"}
    assert "kernelwright.pytest_plugin" in entries and "kernelwright.__main__:main" in entries


@pytest.mark.slow
def test_the_wheel_works_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    """In an environment of its own over this one's libraries, from another folder."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    libraries = {str(Path(p)) for p in sys.path if p.endswith("site-packages")}
    site = next((tmp_path / "venv").rglob("site-packages"))
    (site / "outer.pth").write_text("\n".join(libraries))
    wheel = str(next(built.glob("*.whl")))
    pip = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--force-reinstall", wheel], check=True)
    script = "import kernelwright; print(kernelwright.__file__, kernelwright.__version__)"
    done = ran(python, tmp_path, "-c", script)
    assert str(site) in done and PROJECT["version"] in done
    (tmp_path / "net.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.sigmoid(x) * x\n"
        "def get_inputs():\n    return [torch.randn(4, 8)]\n"
    )
    command = str(python.with_name("kernelwright"))
    told = subprocess.run(
        [command, "explain", "net:Model", "--device", "cpu"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0 and "net.py:4" in told.stdout, told.stderr
    assert "--kernelwright-report" in ran(python, tmp_path, "-m", "pytest", "--help")


def ran(python: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The top-level modules that a file imports, each with whether it does so when it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(n)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for n in ast.walk(outer)
    }
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            yield name.partition(".")[0], id(node) not in inside


def declared(lines: list[str]) -> set[str]:
    return {re.split(r"[\s<>=\[;]", line)[0].lower().replace("_", "-") for line in lines}


def test_everything_imported_is_declared() -> None:
    """By the distributions that modules come from, as they are installed here."""
    known = packages_distributions()
    always = declared(PROJECT["dependencies"])
    extras = {name: declared(PROJECT["optional-dependencies"][name]) for name in EXTRAS}
    for path in PACKAGE.rglob("*.py"):
        for module, at_once in imports(path):
            if module in sys.stdlib_module_names or module == "kernelwright":
                continue
            if HOSTS.get(path.name) == module:
                continue
            names = {
                n.lower().replace("_", "-") for n in known.get(module, [CALLED.get(module, module)])
            }
            allowed = always if at_once else always.union(*extras.values())
            assert names & allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_everything_the_tests_import_is_declared() -> None:
    known = packages_distributions()
    allowed = declared(PROJECT["dependencies"])
    for lines in PROJECT["optional-dependencies"].values():
        allowed |= declared(lines)
    own = WRITTEN | {
        p.stem for f in ("tests", "benchmarks", "examples", "docs") for p in (ROOT / f).rglob("*")
    }
    for folder in ("tests", "benchmarks", "examples", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            for module, _ in imports(path):
                if module in sys.stdlib_module_names | own | {"kernelwright"}:
                    continue
                names = {
                    n.lower().replace("_", "-")
                    for n in known.get(module, [CALLED.get(module, module)])
                }
                assert names & allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_every_library_has_its_reason() -> None:
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    for name in declared(PROJECT["dependencies"]) | set().union(
        *(declared(PROJECT["optional-dependencies"][extra]) for extra in EXTRAS)
    ):
        assert re.search(rf"^\|[^|]*\b{name}\b", page, re.MULTILINE), name


def test_the_versions_agree() -> None:
    from kernelwright import __version__

    version = PROJECT["version"]
    assert __version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
