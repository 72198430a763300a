"""The published schema of reports: it is what the dataclasses say, and reports are what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import checking
import pytest

from kernelwright.cli import main

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "src" / "kernelwright" / "schema.json"
TINY = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(4, 8)]
"""
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    pytest.importorskip("msgspec", reason="msgspec generates the schema")
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "docs/make_schema.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def checked(document: Any) -> Any:
    jsonschema.validate(document, json.loads(PUBLISHED.read_text()))
    return document


def test_the_published_schema_is_the_generated_one(maker: ModuleType) -> None:
    told = "run PYTHONPATH=src python docs/make_schema.py"
    assert PUBLISHED.read_text() == maker.text(), told


def test_every_command_with_json_is_in_it(maker: ModuleType) -> None:
    from kernelwright.cli import COMMANDS

    assert set(maker.FIELDS) == set(COMMANDS)


def test_the_schema_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    main(["cache", "--json", "-"])
    good = checked(json.loads(capsys.readouterr().out))
    for wrong in ({"schema": 2}, {"command": "other"}, {"bytes": "many"}, {"error": {"kind": "x"}}):
        with pytest.raises(jsonschema.ValidationError):
            checked({**good, **wrong})


@pytest.mark.parametrize("command", ["explain", "verify", "bench", "optimize", "check", "sweep"])
def test_a_failure_is_a_report_too(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.py")
    more = {"verify": [missing], "bench": [missing], "sweep": ["--out", str(tmp_path / "run")]}
    code = main([command, missing, *more.get(command, []), "--json", "-", "--quiet"])
    printed = capsys.readouterr()
    report = checked(json.loads(printed.out))
    assert code == report["error"]["exit_code"] == 2
    assert (report["command"], report["error"]["kind"]) == (command, "InputError")
    assert report["error"]["message"] in printed.err


def test_a_plan_is_what_the_schema_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "tiny.py"
    model.write_text(TINY)
    arguments = ["--device", "cpu", "--json", "-", "--quiet"]
    assert main(["explain", str(model), *arguments]) == 0
    report = checked(json.loads(capsys.readouterr().out))
    assert report["error"] is None and report["ledger"][0]["op"] == "tanh"


def test_a_refuted_candidate_has_its_certificate_and_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, candidate = tmp_path / "tiny.py", tmp_path / "new.py"
    model.write_text(TINY)
    candidate.write_text(TINY.replace("class Model", "class ModelNew").replace("tanh", "sin"))
    arguments = ["--device", "cpu", "--json", "-", "--quiet", "--only", "oracle"]
    assert main(["verify", str(model), str(candidate), *arguments]) == 3
    report = checked(json.loads(capsys.readouterr().out))
    assert report["error"]["kind"] == "VerificationError" and report["error"]["exit_code"] == 3
    assert report["passed"] is False and report["checks"][0]["name"] == "oracle"


def test_rows_of_a_sweep_are_what_the_schema_says(tmp_path: Path) -> None:
    sys.path.insert(0, str(checking.TESTS / "sweep"))
    from pretending import pretend, write_problems

    from kernelwright.sweep.journal import rows

    kinds = {"a": "pass 2.0", "b": "wrong", "c": "exit 1"}
    swept = pretend(write_problems(tmp_path / "p", kinds), tmp_path / "out")
    published = json.loads(PUBLISHED.read_text())
    row_schema = {"$ref": "#/$defs/Row", "$defs": published["$defs"]}
    for row in rows(swept.out):
        jsonschema.validate(row, row_schema)
    checked(json.loads((swept.out / "summary.json").read_text()))
