"""GPU MODE's tasks for its KernelBot: a folder with reference.py and task.yml.

reference.py has `ref_kernel(data)`, `generate_input(**case)` and `check_implementation(data,
output)`; task.yml names the files that lie together when a submission runs, the cases of `tests`
and of `benchmarks`, and the evaluator. A submission is submission.py with `custom_kernel(data)`.
`run_evaluator` runs a task's own evaluator in the way that the bot does: `eval.py MODE CASES`, with
`key: value` lines over the descriptor that POPCORN_FD names.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError
from kernelwright.formats.posed import (
    Case,
    Files,
    Format,
    Posed,
    defined,
    first_text,
    parsed,
    text_of,
    with_class,
)

SUBMISSION, MARK = "submission.py", "@SUBMISSION@"
EVALUATOR = "eval.py"
PASSED, FAILED = 0, 112
FILE_DESCRIPTOR, RANDOM_SEED = "POPCORN_FD", "POPCORN_SEED"

MODEL = '''"""The task's reference as a Model of one argument."""

import torch
from torch import nn

from reference import generate_input, ref_kernel

CASE = {case!r}


class Model(nn.Module):
    def forward(self, data):
        return ref_kernel(data)


def get_inputs():
    case = dict(CASE)
    if "seed" in case:
        case["seed"] = int(torch.randint(2**31, ()))
    return [generate_input(**case)]


def get_init_inputs():
    return []
'''

CLASS = '''from torch import nn


class ModelNew(nn.Module):
    """custom_kernel as a module."""

    def forward(self, data):
        return custom_kernel(data)
'''

ENTRY = """

_kw_module = ModelNew().eval()


def custom_kernel(data):
    return _kw_module(data)
"""


def _matches(path: Path) -> bool:
    return (path / "reference.py").is_file() and any(
        (path / name).is_file() for name in ("task.yml", "task.yaml", "task.py")
    )


def _read(path: Path) -> Files:
    """task.yml and the files that it names, under the names by which they lie together."""
    described = next((p for p in (path / "task.yml", path / "task.yaml") if p.is_file()), None)
    if described is None:
        return {file.name: text_of(file) for file in sorted(path.glob("*.py"))}
    files = {"task.yml": text_of(described)}
    for entry in _described(files["task.yml"]).get("files", []):
        if entry["source"] != MARK:
            files[entry["name"]] = text_of(path / entry["source"])
    return files


def _described(text: str) -> dict[str, Any]:
    """What task.yml says; PyYAML is no dependency of the package, which needs it here alone."""
    try:
        import yaml
    except ImportError as error:
        raise InputError("task.yml is read with PyYAML; install it: pip install pyyaml.") from error
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"task.yml cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(found, dict):
        raise InputError("task.yml must be a mapping with files, tests and benchmarks.")
    return found


def _cases(posed: Posed) -> list[Case]:
    """What is tested, then what is timed; without a description generate_input() is called bare."""
    if "task.yml" not in posed.files:
        return [Case()]
    found = _described(posed.files["task.yml"])
    cases = [Case(spelled(spec), spec, False) for spec in found.get("tests", [])]
    timed = [Case(spelled(spec), spec, True) for spec in found.get("benchmarks", [])]
    return cases + timed or [Case()]


def spelled(spec: Mapping[str, Any]) -> str:
    """As a line of the evaluator's file of cases has it."""
    return "; ".join(f"{name}: {value}" for name, value in spec.items())


def _model(posed: Posed, case: Case) -> str:
    return MODEL.format(case=dict(case.spec))


def _candidate(posed: Posed, answer: Files) -> Files:
    text = first_text(answer)
    if parsed(text) and not {"custom_kernel", "ModelNew"} & _assigned(text):
        raise InputError(f"{next(iter(answer))} defines no custom_kernel(data); name it so.")
    return with_class(answer, CLASS)


def _assigned(text: str) -> set[str]:
    """What a file defines, also by an assignment: a kernel may be a decorated or compiled one."""
    tree = parsed(text) or ast.Module([], [])
    plain = [node for node in tree.body if isinstance(node, ast.Assign)]
    targets = [target for node in plain for target in node.targets]
    return defined(text).keys() | {t.id for t in targets if isinstance(t, ast.Name)}


def _submission(posed: Posed, emitted: str) -> Files:
    return {SUBMISSION: emitted.rstrip() + "\n" + ENTRY}


def lay_out(posed: Posed, submission: str, folder: Path) -> None:
    """The folder in which a submission is run, as task.yml describes it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**posed.files, SUBMISSION: submission}.items():
        (folder / name).write_bytes(text.encode("utf-8", errors="surrogateescape"))


def run_evaluator(
    folder: Path, mode: str, cases: Sequence[Case], seed: int, seconds: float
) -> tuple[int, dict[str, str]]:
    """The exit code of a task's own evaluator (0 passed, 112 not) and what it logged by key."""
    listed = folder / f"{mode}_cases.txt"
    listed.write_text("".join(f"{spelled(case.spec)}\n" for case in cases))
    out, into = os.pipe()
    environment = {**os.environ, FILE_DESCRIPTOR: str(into), RANDOM_SEED: str(seed)}
    command = [sys.executable, EVALUATOR, mode, str(listed)]
    logged = folder / f"{mode}.log"
    with os.fdopen(out) as reader, logged.open("wb") as log:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, pass_fds=[into], stdout=log, stderr=log
            )
        finally:
            os.close(into)
        with process:
            said = reader.read()
            code = process.wait(timeout=seconds)
    pairs = (line.partition(": ") for line in said.splitlines())
    return code, {key: value for key, found, value in pairs if found}


KERNELBOT = Format(
    "kernelbot",
    "a folder with reference.py and task.yml",
    _matches,
    _read,
    lambda path: "reference.py",
    _cases,
    _model,
    _candidate,
    _submission,
)
