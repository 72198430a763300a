"""What people expect of a package: errors to catch, truth of a certificate, assertions, pytest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kernelwright
from kernelwright import assertions, errors
from kernelwright.errors import InputError
from kernelwright.module_paths import model_file
from kernelwright.verify.certificate import Certificate, Check

ROOT = Path(__file__).resolve().parents[2]
NETS = """
import torch
from torch import nn

class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x

def get_inputs():
    return [torch.randn(4, 8)]
"""


def certificate(passed: bool) -> Certificate:
    checks = (Check("oracle", passed, "two numbers differ"), Check("state", True, "equal"))
    return Certificate("Net", "NetNew", "cpu", "highest", checks, seed=11)


def test_every_error_is_public_and_documented() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.KernelwrightError)
    }
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    for name, kind in kinds.items():
        assert getattr(kernelwright, name) is kind and name in kernelwright.__all__
        assert kind.__doc__ and f"`{name}`" in page


def test_lint_checks_the_types_of_a_user_s_program() -> None:
    """mypy reads tests/typing with the package, in strict mode: all of the API must be used there.

    A wrong use that it did not find would leave a comment unused, which strict mode refuses.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] and "tests/typing" in settings["files"]
    program = (ROOT / "tests" / "typing" / "user_program.py").read_text()
    functions = {name for name in kernelwright.__all__ if name[0].islower()}
    assert functions <= set(re.findall(r"kernelwright\.(\w+)\(", program))
    wrong = [line for line in program.splitlines() if "type: ignore[" in line]
    named = [name for line in wrong for name in re.findall(r"kernelwright\.(\w+)", line)]
    assert functions <= set(named)


def test_an_error_is_caught_by_its_public_name() -> None:
    with pytest.raises(kernelwright.InputError, match="There is no file"):
        kernelwright.explain("nowhere.py")


@pytest.mark.parametrize("passed", [True, False])
def test_a_certificate_is_true_if_it_passed(passed: bool) -> None:
    assert bool(certificate(passed)) is passed


def test_what_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Certificate] = []
    monkeypatch.setattr(assertions, "listeners", [heard.append])
    good, bad = certificate(True), certificate(False)
    assert assertions.judged(good) is good
    with pytest.raises(AssertionError, match="oracle: two numbers differ") as caught:
        assertions.judged(bad)
    assert isinstance(caught.value, kernelwright.VerificationError)
    assert caught.value.certificate is bad and "seed=11" in str(caught.value)
    assert heard == [good, bad]


def test_assert_certified_gives_verify_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def verify(*given: object, **options: object) -> Certificate:
        asked.append((given, options))
        return certificate(True)

    monkeypatch.setitem(vars(kernelwright), "verify", verify)
    kernelwright.assert_certified("new.py", "model.py", only=["oracle"])
    expected = {"device": "auto", "precision": "current", "only": ["oracle"]}
    assert asked == [(("model.py", "new.py", None, None), expected)]


SUITE = """
import pytest
from kernelwright import assertions
from kernelwright.verify.certificate import Certificate, Check

@pytest.mark.parametrize("passed", [True, False])
def test_block(passed):
    check = Check("oracle", passed, "<as told>")
    assertions.judged(Certificate("Net", "NetNew", "cpu", "highest", (check,)))
"""


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["one process", "workers"])
def test_the_plugin_keeps_every_certificate(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    workers = ["-p", "xdist"] if more else []
    report = tmp_path / "report.json"
    done = run_pytest(tmp_path, *workers, *more, "--kernelwright-report", str(report))
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout
    assert "1 of 2 certificates passed" in done.stdout
    told = json.loads(report.read_text())
    rows = sorted((row["test"], row["certificate"]["passed"]) for row in told["certificates"])
    assert told["schema"] == 1
    assert rows == [
        ("test_suite.py::test_block[False]", False),
        ("test_suite.py::test_block[True]", True),
    ]


def test_the_plugin_writes_a_page(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    run_pytest(tmp_path, "--kernelwright-report", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "test_suite.py::test_block[True]" in page and "&lt;as told&gt;" in page
    assert "http" not in page


def test_the_plugin_refuses_other_endings_and_is_silent_unasked(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text("def test_one(): pass")
    done = run_pytest(tmp_path, "--kernelwright-report", "report.txt")
    assert done.returncode == 4 and "such an ending" in done.stderr
    assert "kernelwright" not in run_pytest(tmp_path).stdout


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with our plugin and no other that is installed."""
    command = [sys.executable, "-m", "pytest", "-p", "kernelwright.pytest_plugin", *options]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_plugin_costs_a_run_of_pytest_no_import() -> None:
    heavy = (
        "import kernelwright.pytest_plugin, sys; assert not {'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", heavy], check=True, env=os.environ | {"PYTHONPATH": "src"}
    )


def test_a_model_by_its_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "zoo" / "__init__.py").write_text("raise RuntimeError('nobody imports this')")
    (package / "nets.py").write_text(NETS)  # a folder without __init__.py is a package too
    monkeypatch.chdir(tmp_path)
    place = Path("zoo/inner/nets.py")
    for text in ("zoo.inner.nets", "zoo.inner.nets:Model", "zoo/inner/nets.py"):
        with model_file(text) as path:
            assert path == place
    for text in ("zoo.inner.nets:Gate", "zoo/inner/nets.py:Gate"):
        with model_file(text) as path:
            assert path.name == "nets_Gate.py" and path.parent == place.parent
            assert path.read_text().startswith(NETS.rstrip())
            assert path.read_text().endswith("\nModel = Gate\n")
        assert not path.exists()
    with model_file("zoo.inner.nets:Gate", "ModelNew") as path:
        assert path.read_text().endswith("\nModelNew = Gate\n")


def test_a_module_path_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    for text in ("nowhere.nets", "nets.inner", "sys", "math"):
        with pytest.raises(InputError, match="nor a module of that name"), model_file(text):
            pass
    with pytest.raises(InputError, match="defines no class Wing"), model_file("nets:Wing"):
        pass
    (tmp_path / "nets_Gate.py").write_text("mine")
    with pytest.raises(InputError, match="cannot be made"), model_file("nets:Gate"):
        pass
    assert (tmp_path / "nets_Gate.py").read_text() == "mine"


def test_the_command_takes_a_class_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", "explain", "nets:Gate", "--device", "cpu"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nets_Gate.py:7" in done.stdout
    assert [p.name for p in tmp_path.glob("*.py")] == ["nets.py"]
