"""Model files become Problems; each kind of bad file becomes one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kernelwright
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

NESTED = """
import collections, dataclasses
import torch
from torch import nn

Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass
class Point:
    x: torch.Tensor
    n: int

class Model(nn.Module):
    def __init__(self, n, *, bias=True):
        super().__init__()
        self.fc = nn.Linear(n, n, bias=bias)

    def forward(self, x, y=None, *rest, z=None, **more):
        return x

def get_inputs():
    return {inputs}

def get_init_inputs():
    return {init}
"""

# get_inputs, positional inputs, named inputs, and what str() says of both
INPUTS = {
    "[torch.ones(4, 8)]": (1, [], "f32[4, 8]"),
    "(torch.ones(4, 8), 3)": (2, [], "f32[4, 8], 3"),
    "torch.ones(4, 8)": (1, [], "f32[4, 8]"),
    '{"x": torch.ones(4, 8), "z": 3}': (0, ["x", "z"], "x=f32[4, 8], z=3"),
    '[[torch.ones(4, 8), {"a": torch.ones(2)}]]': (1, [], "[f32[4, 8], {'a': f32[2]}]"),
    "[Pair(torch.ones(4, 8), 1)]": (1, [], "Pair(a=f32[4, 8], b=1)"),
    "[Point(torch.ones(4, 8).half(), 2)]": (1, [], "Point(x=f16[4, 8], n=2)"),
    '{"x": [Point(torch.ones(4, 8), 2)], "q": None}': (
        0,
        ["x", "q"],
        "x=[Point(x=f32[4, 8], n=2)], q=None",
    ),
    "[None, torch.ones(4, 8), 1, 2, 3]": (5, [], "None, f32[4, 8], 1, 2, 3"),
}

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
    "a dict of something else": (
        GOOD.replace("[torch.rand(4, 8)]", "{3: torch.rand(4, 8)}"),
        "must return a list, or a dict by argument name, but it returned a dict",
    ),
    "an unknown name": (
        GOOD.replace("[torch.rand(4, 8)]", "{'y': torch.rand(4, 8)}"),
        "put it into a list if forward takes the dict itself",
    ),
    "init inputs of an unknown name": (GOOD.replace("[8]", "{'m': 8}"), "Model.__init__"),
    "get_init_inputs is no list": (GOOD.replace("[8]", "8"), "it returned a int"),
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


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("init", ["[8]", '{"n": 8, "bias": False}'])
def test_inputs_of_every_kind(inputs: str, init: str, tmp_path: Path) -> None:
    count, names, described = INPUTS[inputs]
    text = NESTED.replace("{inputs}", inputs).replace("{init}", init)
    problem = load_problem(write(tmp_path, text), "cpu")
    assert len(problem.inputs) == count
    assert list(problem.kwargs) == names
    assert problem.batch == 4
    assert problem.tensors[0].shape == (4, 8)
    assert str(problem).endswith(f": ({described})")
    assert (problem.module.fc.bias is None) == bool(problem.init_kwargs)
    assert (problem.init_args, problem.init_kwargs) in (((8,), {}), ((), {"n": 8, "bias": False}))


def test_nested_tensors_are_moved(tmp_path: Path) -> None:
    inputs = '{"x": [Point(torch.ones(4, 8), 2), Pair({"a": torch.ones(4)}, (torch.ones(4),))]}'
    text = NESTED.replace("{inputs}", inputs).replace("{init}", "[8]")
    problem = load_problem(write(tmp_path, text), "meta")
    assert [x.device.type for x in problem.tensors] == ["meta"] * 3
    assert problem.device.type == "meta"
    assert type(problem.kwargs["x"][0]).__name__ == "Point"


class Anything(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(
    ("inputs", "kwargs", "count", "names"),
    [
        (torch.rand(2, 3), None, 1, []),
        ([torch.rand(2, 3)], None, 1, []),
        ({"a": torch.rand(2, 3)}, None, 0, ["a"]),
        ({"a": torch.rand(2, 3)}, {"b": 1}, 0, ["a", "b"]),
        ((), {"b": torch.rand(2, 3)}, 0, ["b"]),
        (None, {"b": torch.rand(2, 3)}, 0, ["b"]),
        (({"a": torch.rand(2, 3)},), {"b": 1}, 1, ["b"]),
    ],
)
def test_live_inputs(inputs: Any, kwargs: Any, count: int, names: list[str]) -> None:
    problem = problem_from_module(Anything(), inputs, "current", kwargs)
    assert len(problem.inputs) == count
    assert list(problem.kwargs) == names
    assert len(problem.tensors) == 1
    assert problem.batch == 2


def test_an_input_that_is_given_twice() -> None:
    with pytest.raises(InputError, match="a is in example_inputs and in example_kwargs"):
        problem_from_module(Anything(), {"a": torch.rand(2)}, "current", {"a": torch.rand(2)})


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Sequential(nn.ReLU())),
        nn.Identity(),
    ],
)
def test_containers_are_problems_too(module: nn.Module) -> None:
    problem = problem_from_module(module, torch.rand(2, 3))
    assert problem.name == type(module).__name__


def test_a_bare_tensor_in_the_public_call() -> None:
    assert kernelwright.explain(nn.Softmax(dim=1), torch.rand(2, 3)).problem.batch == 2


@pytest.mark.parametrize("make", [lambda m: torch.jit.trace(m, torch.ones(2, 4)), torch.jit.script])
@pytest.mark.parametrize("around", [False, True])
def test_torch_script_is_refused(make: Any, around: bool) -> None:
    module = make(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    given = nn.Sequential(module) if around else module
    what = "0" if around else "The module"
    with pytest.raises(InputError, match=f"^{what} is TorchScript, which cannot be traced again"):
        problem_from_module(given, (torch.ones(2, 4),))


def test_lazy_layers_take_their_sizes_from_the_example() -> None:
    module = nn.Sequential(
        nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5)
    )
    problem = problem_from_module(module, (torch.randn(2, 3, 6, 6),))
    assert problem.module is module and module.training and type(module[3]) is nn.Linear
    assert module[3].weight.shape == (5, 64) and torch.equal(module[1].running_mean, torch.zeros(4))
    assert module[1].num_batches_tracked == 0
