"""Tensors that are neither parameters nor buffers are read where they are, at every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import checking
import pytest
import torch
from torch import Tensor, nn

from kernelwright.pipeline import compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem, load_source

TEXT = """
import torch
from torch import nn

TABLE = torch.randn(6)
TABLES = {"a": [torch.randn(6), torch.randn(6)]}


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [torch.randn(6)]

    def forward(self, x):
        return torch.tanh(x) + self.steps[0] * TABLES["a"][1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.randn(6)
        self.parts = nn.ModuleList([Part()])

    def forward(self, x):
        return self.parts[0](x * TABLE + self.shift) * torch.tensor([1.0, 2, 3, 4, 5, 6])


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
"""


def attribute(space: ModuleType, model: nn.Module) -> Tensor:
    return model.shift  # type: ignore[return-value]


def in_a_list(space: ModuleType, model: nn.Module) -> Tensor:
    return model.parts[0].steps[0]  # type: ignore[index]


def of_the_file(space: ModuleType, model: nn.Module) -> Tensor:
    return space.TABLE


def deep_in_the_file(space: ModuleType, model: nn.Module) -> Tensor:
    return space.TABLES["a"][1]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory, extensions: Path) -> ModuleType:
    folder = tmp_path_factory.mktemp("places")
    (folder / "model.py").write_text(TEXT)
    compiled = compile_problem(load_problem(folder / "model.py", "cpu"), policy=ALWAYS)
    (folder / "model_new.py").write_text(compiled.source)
    return load_source(folder / "model_new.py")


@pytest.mark.parametrize("place", [attribute, in_a_list, of_the_file, deep_in_the_file])
def test_a_written_tensor_is_seen(
    emitted: ModuleType, place: Callable[[ModuleType, nn.Module], Tensor]
) -> None:
    """The emitted file drew other numbers than the one that was traced; they change once more."""
    model, x = emitted.ModelNew(), torch.randn(5, 6)
    for _ in range(2):
        expected = emitted.Model.forward(model, x)
        checking.check_close("places", model(x), expected, expected.double())
        place(emitted, model).mul_(3.0)
    assert not model.fallbacks


def test_a_replaced_global_is_seen(emitted: ModuleType) -> None:
    model, x = emitted.ModelNew(), torch.randn(5, 6)
    before = model(x)
    emitted.TABLE = torch.randn(6)
    expected = emitted.Model.forward(model, x)
    checking.check_close("a replaced global", model(x), expected, expected.double())
    assert not torch.allclose(before, expected)
