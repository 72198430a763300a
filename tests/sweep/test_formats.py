"""Problems as others pose them: read without being run, made files with Model, and handed back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelwright.errors import InputError
from kernelwright.formats import (
    Case,
    Files,
    Posed,
    answer_files,
    evaluator,
    form_named,
    found,
    kernelbot,
    read,
)
from kernelwright.formats.posed import write_files
from kernelwright.loading import load_source
from kernelwright.problem import load_problem
from kernelwright.sweep import Corpus

SAMPLES = Path(__file__).parent / "samples"
FORMS = {
    "kernelbench/1_scale_and_shift": ("kernelbench", [""]),
    "function/squared_distance": ("function", ["0", "1"]),
    "kernelbot/scaled_softmax": (
        "kernelbot",
        [
            "rows: 5; columns: 33; seed: 11",
            "rows: 32; columns: 64; seed: 5",
            "rows: 64; columns: 64; seed: 6",
        ],
    ),
    "sol/rms_norm": ("sol-execbench", ["rows=8", "rows=40"]),
}

DPS = '''import torch


def normalise(x, weight, eps, y):
    """Writes into the output that it is given."""
    torch.mul(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), weight, out=y)
'''
ANSWERS: dict[str, Files] = {
    "kernelbench/1_scale_and_shift": {
        "new.py": """import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, width))
        self.shift = nn.Parameter(torch.linspace(-1.0, 1.0, width))

    def forward(self, x):
        return torch.addcmul(self.shift, x, self.scale).tanh()
"""
    },
    "function/squared_distance": {
        "fast.py": "def fast(a, b):\n    return (a - b).pow(2).sum(dim=1)\n"
    },
    "kernelbot/scaled_softmax": answer_files(SAMPLES / "kernelbot/scaled_softmax/submission.py"),
    "sol/rms_norm": {
        "solution.json": json.dumps(
            {
                "name": "mine",
                "definition": "rms_norm_d64",
                "author": "somebody",
                "spec": {
                    "languages": ["pytorch"],
                    "target_hardware": ["LOCAL"],
                    "entry_point": "src/main.py::normalise",
                    "destination_passing_style": True,
                },
                "sources": [{"path": "src/main.py", "content": DPS}],
            }
        )
    },
}


def posed(name: str) -> Posed:
    path = next(p for p in (SAMPLES / name, SAMPLES / f"{name}.py") if p.exists())
    ((form, place),) = found(path)
    return read(form, place, name)


def cases_of(problem: Posed) -> list[Case]:
    cases = form_named(problem.form).cases(problem)
    return [Case(str(i), {"number": i}) for i in range(2)] if cases is None else cases


def laid_out(problem: Posed, case: Case, folder: Path) -> Path:
    """The file with Model of one case, among the problem's own files."""
    write_files(problem.files, folder)
    path = folder / "model.py"
    path.write_text(form_named(problem.form).model(problem, case))
    return path


def test_all_forms_are_found_in_a_folder() -> None:
    forms = {task.problem.name: task.problem.form for task in Corpus(SAMPLES)}
    assert forms == {name: form for name, (form, _) in FORMS.items()}


@pytest.mark.parametrize("name", FORMS)
def test_each_case_is_a_model(name: str, tmp_path: Path) -> None:
    problem = posed(name)
    cases = cases_of(problem)
    assert [case.label for case in cases] == FORMS[name][1]
    shapes = set()
    for number, case in enumerate(cases):
        loaded = load_problem(laid_out(problem, case, tmp_path / str(number)), "cpu")
        with torch.no_grad():
            result = loaded.module(*loaded.inputs, **loaded.kwargs)
        assert isinstance(result, torch.Tensor) and result.isfinite().all()
        shapes.add(tuple(loaded.tensors[0].shape))
    assert len(shapes) == len(cases)


@pytest.mark.parametrize("name", FORMS)
def test_inputs_follow_the_seed_of_torch(name: str, tmp_path: Path) -> None:
    """A judge draws several; a form that fixes its seed would always give the same."""
    problem = posed(name)
    path = laid_out(problem, cases_of(problem)[-1], tmp_path)
    drawn = [load_problem(path, "cpu", seed=seed).tensors[0] for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_handed_in_is_a_model_new(name: str, tmp_path: Path) -> None:
    problem, form = posed(name), form_named(posed(name).form)
    path = laid_out(problem, cases_of(problem)[-1], tmp_path)
    answer = form.candidate(problem, ANSWERS[name])
    write_files(answer, tmp_path)
    loaded = load_problem(path, "cpu")
    new = load_source(tmp_path / next(iter(answer))).ModelNew(*loaded.init_args)
    with torch.no_grad():
        expected, given = (module(*loaded.inputs) for module in (loaded.module, new))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("name", FORMS)
def test_a_submission_is_in_the_problems_own_form(name: str, tmp_path: Path) -> None:
    """What we would emit, and what its readers call: the function, the file, the entry point."""
    problem, form = posed(name), form_named(posed(name).form)
    path = laid_out(problem, cases_of(problem)[-1], tmp_path)
    emitted = path.read_text() + "\n\nclass ModelNew(Model):\n    pass\n"
    made = form.submission(problem, emitted)
    again = form.candidate(problem, made)
    write_files(again, tmp_path)
    module = load_source(tmp_path / next(iter(again)))
    loaded = load_problem(path, "cpu")
    with torch.no_grad():
        expected = loaded.module(*loaded.inputs)
        torch.testing.assert_close(entry(problem, module)(*loaded.inputs), expected)
        torch.testing.assert_close(module.ModelNew(*loaded.init_args)(*loaded.inputs), expected)


def entry(problem: Posed, module: ModuleType) -> Any:
    names = {"function": "squared_distance", "kernelbot": "custom_kernel", "sol-execbench": "solve"}
    if problem.form == "kernelbench":
        return module.ModelNew(96)
    return getattr(module, names[problem.form])


WRONG = {
    "kernelbench/1_scale_and_shift": ({"a.py": "x = 1\n"}, "no `class ModelNew`"),
    "kernelbot/scaled_softmax": ({"a.py": "def other(data): ...\n"}, "no custom_kernel"),
    "sol/rms_norm": ({"a.json": '{"name": "x"}'}, "needs spec and sources"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_candidate_is_refused_in_a_sentence(name: str) -> None:
    answer, told = WRONG[name]
    problem = posed(name)
    with pytest.raises(InputError, match=told):
        form_named(problem.form).candidate(problem, answer)


@pytest.mark.parametrize(
    ("expression", "told"),
    [("heads * missing", "no arithmetic"), ("__import__('os')", "no arithmetic")],
)
def test_an_axis_is_arithmetic_alone(expression: str, told: str) -> None:
    problem = posed("sol/rms_norm")
    definition = json.loads(problem.files["definition.json"])
    definition["axes"]["hidden"]["expression"] = expression
    files = {**problem.files, "definition.json": json.dumps(definition)}
    broken = Posed(problem.name, problem.form, problem.main, files)
    with pytest.raises(InputError, match=told):
        form_named(problem.form).model(broken, cases_of(broken)[0])


def test_a_name_of_a_file_leads_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leads out"):
        write_files({"../outside.py": "x"}, tmp_path / "inner")


def test_a_task_is_judged_by_its_own_evaluator(tmp_path: Path) -> None:
    """The folder that task.yml lays out, the modes, the lines and the exit codes of KernelBot."""
    pytest.importorskip("yaml", reason="task.yml is read with PyYAML")
    problem = posed("kernelbot/scaled_softmax")
    cases = cases_of(problem)
    right = ANSWERS["kernelbot/scaled_softmax"]["submission.py"]
    kernelbot.lay_out(problem, right.replace("/ g", "* g"), tmp_path)
    assert {p.name for p in tmp_path.glob("*.py")} == {
        *("submission.py", "task.py", "utils.py", "reference.py", "eval.py")
    }
    got, said = kernelbot.run_evaluator(tmp_path, "test", cases[:1], seed=7, seconds=100)
    assert (got, said["check"]) == (kernelbot.FAILED, "fail")
    assert said["test-count"] == "1" and said["test.0.spec"] == cases[0].label
    assert said["test.0.error"].startswith("off by")
    kernelbot.lay_out(problem, right, tmp_path)
    got, said = kernelbot.run_evaluator(tmp_path, "benchmark", cases[1:], seed=7, seconds=100)
    assert got == 0
    for number in range(2):
        figures = [float(said[f"benchmark.{number}.{name}"]) for name in ("best", "mean", "worst")]
        assert 0 < figures[0] <= figures[1] <= figures[2]


def test_kernelbench_s_evaluator_says_what_its_results_file_has(tmp_path: Path) -> None:
    name = "kernelbench/1_scale_and_shift"
    original, right = (SAMPLES / f"{name}.py").read_text(), ANSWERS[name]["new.py"]
    paths = [tmp_path / name for name in ("model.py", "new.py", "out.json")]
    for path, text in zip(paths, (original, right), strict=False):
        path.write_text(text)
    command = [sys.executable, "-m", "kernelwright.formats.evaluator"]
    subprocess.run([*command, *map(str, paths[:2]), "cpu", str(paths[2])], check=True)
    found = json.loads(paths[2].read_text())
    stats = found["runtime_stats"]
    assert found["compiled"] and found["correctness"] and found["ref_runtime"] > 0
    assert stats["num_trials"] == 100 and stats["min"] <= found["runtime"] <= stats["max"]


def test_kernelbench_s_evaluator_refuses() -> None:
    name = "kernelbench/1_scale_and_shift"
    original, right = (SAMPLES / f"{name}.py").read_text(), ANSWERS[name]["new.py"]
    cpu = torch.device("cpu")
    wrong = evaluator.sample(original, right.replace(".tanh()", ".sin()"), cpu, 1)
    assert (wrong["compiled"], wrong["correctness"], wrong["runtime"]) == (True, False, -1.0)
    broken = evaluator.sample(original, "raise SystemError('no')\n", cpu, 1)
    assert (broken["compiled"], broken["correctness"]) == (False, False)
    assert "SystemError: no" in broken["metadata"]["compilation_error"]
