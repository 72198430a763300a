"""Hostile names and constants, deep and wide models: what is emitted compiles, and is right.

Names of modules, parameters, buffers, classes, arguments and files reach comments, strings and
identifiers of the emitted Python and C++; hypothesis makes some up, others are old acquaintances.
"""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from fuzzing import together
from fuzzing.compiled import WRONG, adopted, judge_all
from fuzzing.recipe import Recipe, Statement
from hypothesis import strategies
from torch import Tensor, nn

from kernelwright.emit import library
from kernelwright.emit.cpp import comment
from kernelwright.emit.lines import docstring
from kernelwright.emit.values import quoted
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem, problem_from_module

HOSTILE = (
    'quote"s', "it's", '"""', "'''", "back\\slash", "*/ int x; /*", "// end", "new\nline", "\r",
    "\t", "nul\0", "{brace}", "{", "%s", "$HOME", "`ls`", "$(ls)", 'R"(', ')"', "??/", "#define kw",
    "\u202e", "\u2028", "\ufeff", "\U0001f600", "größe", "int", "template", "class", "None",
    "lambda", "self",
    "torch", "batch", "run", "kw", "std", "ModelNew", "_kw_fused", "_KW_PROGRAMS", "__class__",
    "try:", "pass", "import threading", "a" * 300, " ", "0", "-1", "a-b", "weight", "forward_",
    "f'{x}'",
)  # fmt: skip
CONSTANTS = (
    "float('nan')", "float('inf')", "-float('inf')", "-0.0", "0.0", "5e-324", "1e-45", "-1e-40",
    "1.1754942e-38", "1e308", "-1e308", "3.4028235e38", "3.5e38", "1e-320", "2**63", "-(2**31)",
    "16777217", "0.1", "1/3", "1e-7", "True",
)  # fmt: skip


class Named(nn.Module):
    """A submodule, a parameter and a buffer under names that somebody chose."""

    def __init__(self, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.LayerNorm(6))
        self.register_parameter(names[1], nn.Parameter(torch.randn(6)))
        self.register_buffer(names[2], torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        inner, parameter, buffer = (getattr(self, name) for name in self.names)
        return torch.softmax(inner(x) * parameter + buffer, dim=1)


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("torch").setLevel(logging.ERROR)


def triples() -> list[tuple[str, str, str]]:
    """Every name once; as what, is by turns."""
    fitting = [n for n in HOSTILE if not hasattr(nn.Module(), n)]
    while len(fitting) % 3:
        fitting.append(f"more{len(fitting)}")
    return list(zip(fitting[::3], fitting[1::3], fitting[2::3], strict=True))


def test_names_of_parts(tmp_path: Path, extensions: Path) -> None:
    """All of them in one library, each right."""
    compiled = {}
    for i, names in enumerate(triples()):
        problem = problem_from_module(Named(names).eval(), (torch.randn(5, 6),))
        compiled[f"names{i}"] = compile_problem(problem)
    built = together.build({n: c.source for n, c in compiled.items()}, tmp_path, "cpu")
    x = torch.randn(3, 6)
    for name, made in compiled.items():
        check_text(made.source)
        new = adopted(together.load(made.source, built[name]), made.problem.module)
        with torch.no_grad():
            torch.testing.assert_close(new(x), made.problem.module(x))
        assert not new.fallbacks, (made.problem.module.names, new.fallbacks)


def check_text(source: str) -> None:
    """It parses; what was generated has no control characters, its comments no checker's words."""
    ast.parse(source)
    generated = library.fused_model(source) + library.programs(source)
    assert not [c for c in generated if c not in "\n" and not c.isprintable()]
    comments = "".join(re.findall(r"(?:#|//) .*\n", generated))
    assert not re.search(r"\bpass\b|try:|import threading", comments)


@hypothesis.settings(max_examples=200, deadline=None, database=None, derandomize=True)
@hypothesis.given(strategies.text() | strategies.sampled_from(HOSTILE))
def test_user_text_is_harmless_where_it_is_quoted(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text
    said = comment(text)
    assert said.isascii() and said.isprintable() and "*/" not in said and not said.endswith("\\")
    parsed = ast.parse(docstring(text))
    assert len(parsed.body) == 1 and isinstance(ast.literal_eval(docstring(text)), str)


@pytest.mark.parametrize("name", ["Größe", "int", "Model2", "_kw_Model", "Fusion", "torch_"])
def test_class_and_argument_names(name: str, tmp_path: Path) -> None:
    text = f"""
import torch
from torch import nn

class {name if name != "int" else "int_"}(nn.Module):
    def forward(self, {name}, *, _kw_run=2.0, FUSION=None):
        return torch.relu({name}) * _kw_run

Model = {name if name != "int" else "int_"}

def get_inputs():
    return [torch.randn(4, 6)]

def get_init_inputs():
    return []
"""
    path = tmp_path / 'it\'s a "model" $x.py'
    path.write_text(text)
    compiled = compile_problem(load_problem(path, "cpu"))
    check_text(compiled.source)
    built = together.build({"one": compiled.source}, tmp_path, "cpu")
    new = together.load(compiled.source, built["one"]).ModelNew()
    x = torch.randn(3, 6)
    assert torch.equal(new(x), compiled.problem.module(x))


@pytest.mark.parametrize("name", ["groups", "weight", "affine", "mean", "sum", "product"])
def test_parts_named_as_the_steps_of_their_lowering(name: str) -> None:
    """An expanded value is called after its module and what it is of it: `norm_mean`."""
    module = nn.Sequential()
    module.add_module(name, nn.GroupNorm(2, 6))
    module.add_module("after", nn.Softmax(1))
    compiled = compile_problem(problem_from_module(module, (torch.randn(5, 6, 3),)))
    assert len(compiled.kernels) == 2
    check_text(compiled.source)


def recipe(*steps: str) -> Recipe:
    statements = tuple(Statement(f"v{i}", text) for i, text in enumerate(steps))
    outputs = f"({', '.join(s.name for s in statements)},)"
    return Recipe((("x0", "torch.randn(batch, 6)"),), (), statements, outputs)


def test_constants(tmp_path: Path, extensions: Path) -> None:
    """In arithmetic, as bounds, fills and exponents: as eager has them, special values and all."""
    forms = (
        "x0 * {c}", "x0 + {c}", "torch.where(x0 > 0, x0, {c})", "torch.clamp(x0, min={c})",
        "torch.clamp(x0, max={c})", "torch.full_like(x0, {c}) - x0", "F.leaky_relu(x0, {c})",
        "x0.masked_fill(x0 > 0, {c})", "F.pad(x0, [1, 1], value={c})", "(x0 > {c})",
    )  # fmt: skip
    recipes: dict[str, Recipe] = {}
    for i, constant in enumerate(CONSTANTS):
        texts = [f.format(c=constant) for f in forms]
        recipes[f"constant{i}"] = recipe(*(t for t in texts if runs(t)))
    verdicts = judge_all(recipes, "cpu", tmp_path)
    wrong = {CONSTANTS[int(n[8:])]: v.why for n, v in verdicts.items() if v.kind == WRONG}
    assert not wrong


def runs(text: str) -> bool:
    try:
        eval(text, {"x0": torch.randn(5, 6), "torch": torch, "F": nn.functional})
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return False
    return True


def deep(depth: int) -> Any:
    names = (
        "torch.sin({0})",
        "{0} * 0.9 + 0.1",
        "torch.tanh({0})",
        "{0} - {0}.mean(1, keepdim=True)",
    )
    steps = [names[i % len(names)].format(f"v{i - 1}" if i else "x0") for i in range(depth)]
    made = recipe(*steps)
    return Recipe(made.inputs, (), made.statements, f"v{depth - 1}")


def wide(width: int) -> Any:
    steps = [f"torch.sin(x0 * {i + 1}.0)" for i in range(width)]
    steps.append(" + ".join(f"v{i}" for i in range(width)))
    steps.append(f"torch.cat([{', '.join(f'v{i}' for i in range(width))}], 1)")
    made = recipe(*steps)
    return Recipe(made.inputs, (), made.statements, f"(v{width}, v{width + 1}, v0)")


class Nested(nn.Module):
    """Modules inside of each other."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 1.5 - 0.5


def test_deep_and_wide_models(tmp_path: Path, extensions: Path) -> None:
    recipes = {"deep": deep(200), "wide": wide(80)}
    verdicts = judge_all(recipes, "cpu", tmp_path)
    assert not {n: v.why for n, v in verdicts.items() if v.kind == WRONG}


def test_modules_far_inside_of_each_other() -> None:
    compiled = compile_problem(problem_from_module(Nested(60).eval(), (torch.randn(4, 6),)))
    ast.parse(compiled.source)
    assert len(compiled.kernels) == 1
