"""Model files become Problems; each kind of bad file becomes one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from kernelwright.errors import InputError
from kernelwright.problem import load_problem, problem_from_module

GOOD = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)

    def forward(self, x):
        return self.fc(x)

def get_inputs():
    return [torch.rand(4, 8)]

def get_init_inputs():
    return [8]
"""

MIXED = """
class Model(Model):
    def to(self, *args):
        self.fc.bias = nn.Parameter(torch.ones(8, device="meta"))
        return self
"""

BAD = {
    "no Model": (GOOD.replace("class Model", "class Net"), "no `class Model"),
    "Model is no module": (GOOD.replace("(nn.Module)", ""), "no `class Model"),
    "no get_inputs": (GOOD.replace("get_inputs", "inputs"), "no `get_inputs()`"),
    "get_inputs raises": (GOOD.replace("torch.rand(4, 8)", "1 / 0"), "raised ZeroDivisionError"),
    "get_inputs is no list": (GOOD.replace("[torch.rand(4, 8)]", "3.5"), "a float"),
    "no tensor": (GOOD.replace("[torch.rand(4, 8)]", "[3]"), "nothing to compile"),
    "too many inputs": (GOOD.replace("8)]", "8), 1]"), "does not accept"),
    "wrong init inputs": (GOOD.replace("[8]", "[8, 9]"), "Model.__init__"),
    "raises on import": (GOOD + "\nraise ValueError('no data here')\n", "raised ValueError"),
    "syntax error": ("class Model(:\n", "SyntaxError"),
    "mixed devices": (GOOD + MIXED, "several devices"),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "model.py"
    path.write_text(text)
    return path


def test_a_good_file_loads(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, GOOD), "cpu")
    assert problem.name == "model"
    assert problem.training
    assert [tuple(x.shape) for x in problem.inputs] == [(4, 8)]
    assert str(problem) == "model on cpu, train mode, float32 matmul highest: (f32[4, 8])"


def test_the_same_seed_gives_the_same_weights_and_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    first, second = load_problem(path, "cpu"), load_problem(path, "cpu")
    assert torch.equal(first.module.fc.weight, second.module.fc.weight)
    assert torch.equal(first.inputs[0], second.inputs[0])


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_input_errors(tmp_path: Path, name: str) -> None:
    text, expected = BAD[name]
    with pytest.raises(InputError) as caught:
        load_problem(write(tmp_path, text), "cpu")
    assert expected in str(caught.value)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        load_problem(tmp_path / "absent.py", "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no GPU"):
        load_problem(write(tmp_path, GOOD), "cuda")


def test_an_unknown_precision_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Unknown precision"):
        load_problem(write(tmp_path, GOOD), "cpu", "sloppy")


def test_a_live_module_keeps_its_mode() -> None:
    problem = problem_from_module(nn.Linear(3, 4).eval(), (torch.rand(2, 3),), "high")
    assert not problem.training
    assert problem.precision == "high"
    assert problem.path is None


@pytest.mark.parametrize(
    "inputs",
    [(), [], None, {}, 3, {1: torch.rand(2, 3)}, {"y": torch.rand(2, 3)}, (torch.rand(2, 3), 1, 2)],
)
def test_wrong_example_inputs_are_input_errors(inputs: object) -> None:
    with pytest.raises(InputError):
        problem_from_module(nn.Linear(3, 4), inputs)  # type: ignore[arg-type]
