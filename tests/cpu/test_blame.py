"""The kernel that is to blame: broken emitted files, and whole ones that nobody may blame."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import verifying

from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem
from kernelwright.verify import inner
from kernelwright.verify.acts import Here, inside
from kernelwright.verify.blame import first_wrong
from kernelwright.verify.inputs import Inputs

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.second = nn.Linear(40, 16)

    def forward(self, x):
        y = torch.sigmoid(self.first(x))
        return torch.logsumexp(self.second(y), dim=1), y.amax(1)

def get_inputs():
    return [torch.randn(12, 24)]

def get_init_inputs():
    return []
"""
SIGMOID, LOG = "kw::sigmoid(", "kw::log("


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("emitted") / "model.py"
    path.write_text(verifying.HEAD + MODEL)
    return compile_problem(load_problem(path, "cpu", "highest")).source


def failure(folder: Path, candidate: str, check: str = "inputs: normal") -> str:
    found = verifying.run_some(folder, MODEL, candidate, check)[check]
    assert found.passed is False, found
    return found.detail


@pytest.mark.parametrize(
    ("old", "new", "kernel", "value"),
    [
        (SIGMOID, "1e-3f + kw::sigmoid(", "bias_sigmoid", "sigmoid"),
        (LOG, "1.001f * kw::log(", "bias_logsumexp", "logsumexp"),
    ],
)
def test_the_first_wrong_kernel_is_named(
    emitted: str, tmp_path: Path, old: str, new: str, kernel: str, value: str
) -> None:
    head, mark, tail = emitted.partition("// ")  # the kernels, and not the ledger above them
    assert old in tail
    told = failure(tmp_path, head + mark + tail.replace(old, new, 1))
    assert "float64 says" in told
    assert f"the first step that is wrong is the kernel {kernel}" in told
    assert f": {value} at (" in told


def test_a_wrong_call_of_torch_is_named(emitted: str, tmp_path: Path) -> None:
    call = "torch.nn.functional.linear(x, first_weight)"
    assert call in emitted
    wrong = "torch.mul(x @ first_weight.t(), 1.01)"
    told = failure(tmp_path, emitted.replace(call, wrong))
    assert "the first step that is wrong is torch's call for first_product" in told


def test_what_is_wrong_around_the_kernels_blames_none(emitted: str, tmp_path: Path) -> None:
    results = "(logsumexp, amax) = _KW_FUSION.run"
    assert results in emitted
    told = failure(tmp_path, emitted.replace(results, "(amax, logsumexp) = _KW_FUSION.run"))
    assert "every kernel by itself is right on these inputs" in told


DOUBLED = """
class ModelNew(Model):
    def forward(self, x):
        a, b = super().forward(x)
        return a * 2, b
"""
FORGED = """
class Fusion:
    fused = run = again = None

_KW_FUSION = Fusion()
"""


@pytest.mark.parametrize("candidate", [DOUBLED, FORGED + DOUBLED], ids=["plain", "forged"])
def test_a_candidate_that_is_not_ours_is_not_looked_into(candidate: str, tmp_path: Path) -> None:
    assert "kernel" not in failure(tmp_path, MODEL + candidate)


@pytest.mark.parametrize(
    "name", ["nested_outputs", "dense_block", "permute_layer_norm", "linear_sum_max_mean_logsumexp"]
)
def test_no_kernel_of_a_right_file_is_blamed(name: str) -> None:
    """Every value that a step stores is known by its name, and right."""
    path = Path(__file__).parents[1] / "models" / f"{name}.py"
    problem = load_problem(path, "cpu", "highest")
    inputs = Inputs(problem.inputs, problem.kwargs)
    new = compile_problem(problem).instantiate()
    found = inside.steps(new, inputs, Here(torch.device("cpu")))
    modules = problem.module, copy.deepcopy(problem.module).double()
    exact = inner.values(inner.planned(problem), modules, inputs, list(found["values"]))
    stored = [name for _, names in found["steps"] for name in names]
    assert stored and set(stored) <= exact.keys()
    assert new(*problem.inputs, **problem.kwargs) is not None, "it runs as before"
    told = first_wrong([(s, n) for s, n in found["steps"]], found["values"], exact)
    assert told == "every kernel by itself is right on these inputs"
