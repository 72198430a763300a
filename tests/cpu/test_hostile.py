"""Hostile names and constants: what is emitted compiles, and is right.

Names of classes, arguments and files reach comments, strings and identifiers of the emitted Python
and C++; hypothesis makes texts up, others are old acquaintances.
"""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import hypothesis
import pytest
import torch
from fuzzing import together
from fuzzing.compiled import WRONG, judge_all
from fuzzing.recipe import Recipe, Statement
from hypothesis import strategies
from torch import nn

from kernelwright.emit import library
from kernelwright.emit.cpp import comment
from kernelwright.emit.lines import docstring
from kernelwright.emit.values import quoted
from kernelwright.pipeline import compile_problem
from kernelwright.problem import load_problem

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


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("torch").setLevel(logging.ERROR)


def check_text(source: str) -> None:
    """It parses, and no control character of the user's is in what was generated."""
    ast.parse(source)
    generated = library.fused_model(source) + library.programs(source)
    assert not [c for c in generated if c not in "\n" and not c.isprintable()]


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
