"""The emitted text itself: what KernelBench's checker reads, and what no user's name may break."""

from __future__ import annotations

import ast
import ctypes
import math
import re
from collections import Counter
from pathlib import Path

import checking
import pytest
from torch import nn

from kernelwright.emit import cxx, library
from kernelwright.emit.apart import own_names
from kernelwright.emit.baked import baked_in
from kernelwright.emit.cpp import comment, number
from kernelwright.emit.lines import docstring
from kernelwright.emit.scopes import bound, imports
from kernelwright.ledger import LedgerRow, render
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.problem import load_problem

# What evaluators look for in a file, wherever it stands: in a comment of a kernel, too.
FORBIDDEN = (
    *("pass", "try:", r"\bexcept\b", "threading", "multiprocessing", r"concurrent\.futures"),
    *("ThreadPoolExecutor", r"torch\.cuda\.Stream", r"\.wait_stream\(", r"\.record_stream\("),
)
SOME = ("conv2d_batch_norm_train_hardswish", "linear_relu_linear", "nested_outputs", "sort_diamond")
PATHS = [*checking.EXAMPLES, *(p for p in checking.MODELS if p.stem in SOME)]


@pytest.fixture(scope="module", params=PATHS, ids=checking.name_of)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param in checking.EXAMPLES:
        return checking.reduced_example(request.param, tmp_path_factory.mktemp("examples"))
    return request.param


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def compiled(request: pytest.FixtureRequest, path: Path) -> Compiled:
    return compile_problem(load_problem(path, "cpu"), target=request.param, policy=ALWAYS)


def generated(compiled: Compiled) -> str:
    assert compiled.problem.source is not None
    head, original, rest = compiled.source.partition(compiled.problem.source.rstrip("\n"))
    assert original and all(line.startswith("#") for line in head.splitlines() if line)
    return head + rest


def test_it_parses(compiled: Compiled) -> None:
    ast.parse(compiled.source)


def test_the_order_is_the_reviewers(compiled: Compiled, path: Path) -> None:
    """The original unchanged, ModelNew, the rest of this model, what runs it, and the library."""
    landmarks = [
        path.read_text().rstrip("\n"),
        "class ModelNew(Model):",
        "def _kw_fused(",
        "_KW_PROGRAMS = ",
        "The library, in Python",
        "class _kw_Fusion",
        "The library, in C++",
        "namespace kw {",
        "_KW_FUSION = ",
    ]
    places = [compiled.source.index(text) for text in landmarks]
    assert places == sorted(places)


def test_names_have_the_prefix(compiled: Compiled) -> None:
    """Everything that is bound at the level of the module, but for imports and ModelNew."""
    text = generated(compiled)
    own = bound(text) - imports(text).keys()
    assert "ModelNew" in own
    assert not [n for n in own - {"ModelNew"} if not n.startswith(("_kw_", "_KW_"))]


def test_no_forbidden_words(compiled: Compiled) -> None:
    text = generated(compiled)
    assert not [word for word in FORBIDDEN if re.search(word, text)]


def test_lines_are_readable(compiled: Compiled) -> None:
    long = [line for line in generated(compiled).splitlines() if len(line) > 124]
    assert not long


def test_the_ledger_is_the_docstring(compiled: Compiled) -> None:
    classes = {n.name: n for n in ast.parse(compiled.source).body if isinstance(n, ast.ClassDef)}
    text = " ".join((ast.get_docstring(classes["ModelNew"]) or "").split())
    for row in compiled.ledger:
        assert f"{row.op} ({row.origin})" in text
        assert " ".join(row.why.split()) in text


def test_nothing_unused_is_left(compiled: Compiled) -> None:
    """Every helper is mentioned by something else in the file."""
    text = generated(compiled)
    for name in own_names(text) | (imports(text).keys() - {"torch"}):
        assert len(re.findall(rf"\b{name}\b", text)) > 1, name


def test_no_two_parts_bind_one_name(compiled: Compiled) -> None:
    """The later one would be both: a constant of a pasted module was a flag of the compiler."""
    bound: Counter[str] = Counter()
    for node in ast.parse(generated(compiled)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (part for target in targets for part in ast.walk(target))
            bound.update(part.id for part in names if isinstance(part, ast.Name))
    assert len(bound) > 10
    assert not [name for name, count in bound.items() if count > 1]


def test_every_definition_of_the_headers_is_used(compiled: Compiled) -> None:
    """By words alone; on the CPU the compiler says so too (tests/cpu/test_pruned.py)."""
    text = checking.kernel_text(compiled)
    code = re.sub(r"//.*|^#include.*", "", text, flags=re.MULTILINE)
    words = Counter(re.findall(r"\w+", code))
    parts = cxx.read(re.sub(r"^#include.*", "", library.headers(compiled.source), flags=re.M))
    found = [d for d, _ in cxx.definitions(parts) if d.name and d.kind != "invocation"]
    named = Counter(str(d.name) for d in found)
    assert len(named) > 10
    assert not [name for name, count in named.items() if words[name] <= count]


def test_every_kernel_is_launched_once(compiled: Compiled) -> None:
    """By Python, or where there is one way alone, by a run; where there are two, by both."""
    body, programs = checking.fused(compiled), checking.programs(compiled)
    for kernel in compiled.kernels:
        by_python = body.count(f'"{kernel.name}"')
        by_run = programs.count(f'run.launch("launch_{kernel.name}"')
        assert by_python <= 1 and by_run <= 1 and by_python + by_run >= 1


def test_the_ledger_tells_repeated_layers_once() -> None:
    rows = [
        LedgerRow("linear", "vit.py:3", "fused", f"linear_{i}", "a product", f"blocks.{i}.mlp")
        for i in range(12)
    ]
    names = {row.where: "linear_0" for row in rows}
    told = "in blocks.0.mlp to blocks.11.mlp fused into linear_0; a product"
    assert " ".join(render(rows, names).split()).endswith(f"linear (vit.py:3) {told}")
    gap = render([rows[0], rows[2], rows[3]], names)
    assert "in blocks.0.mlp and blocks.2.mlp and blocks.3.mlp fused" in " ".join(gap.split())
    twice = render([rows[0], rows[0]], names)
    assert "linear (vit.py:3) 2 times\n" in twice and "to blocks" not in twice
    assert render(rows).count("fused into") == 12


def test_the_ledger_tells_what_operators_share_once() -> None:
    long = "a_file_with_a_long_name.py"
    rows = [LedgerRow(op, f"{long}:{i}", "fused", "k", "why") for i, op in enumerate("abcd")]
    rows.append(LedgerRow("e", f"{long}:4", "aten", "e.default", "why not"))
    lines = render(rows).splitlines()[2:]
    assert lines[2:] == [
        "    fused into k; why",
        f"e ({long}:4)",
        "    left to ATen: e.default; why not",
    ]
    assert lines[0].startswith(f"a ({long}:0), b ({long}:1),") and max(map(len, lines)) <= 92


def test_modules_that_are_alike_are_one_row() -> None:
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]
    rows = ["".join(row) for row in baked_in(nn.Sequential(*layers), follows_mode=False)]
    assert len(rows) == 4 and sum('("0", "2")' in row for row in rows) == 1


def test_future_import_is_dropped(tmp_path: Path) -> None:
    original = next(p for p in checking.MODELS if p.stem == "where_scale").read_text()
    file = tmp_path / "future.py"
    file.write_text(
        original.replace(
            "import torch\n", "from __future__ import annotations\n\nimport torch\n", 1
        )
    )
    source = compile_problem(load_problem(file, "cpu"), policy=ALWAYS).source
    assert "__future__" not in source
    ast.parse(source)


def test_a_live_module_is_imported() -> None:
    """Without a file there is no source to repeat; the class is imported by its own name."""
    import torch

    from kernelwright.problem import problem_from_module

    problem = problem_from_module(torch.nn.Softmax(dim=1), (torch.randn(4, 8),))
    source = compile_problem(problem, policy=ALWAYS).source
    assert "from torch.nn.modules.activation import Softmax" in source
    ast.parse(source)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, 1.0, -2.5, 1e-45, 1.17549435e-38, 3.4028235e38,
                                   1 / 3, math.pi, 16777217.0, 1e10, 123456.789, 1e-5])  # fmt: skip
def test_constants_are_exact(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"-?\d+(\.\d*)?(e[+-]?\d+)?f", text)
    single = ctypes.c_float(value).value
    assert ctypes.c_float(float(text[:-1])).value == single
    assert math.copysign(1.0, float(text[:-1])) == math.copysign(1.0, value)


def test_special_constants() -> None:
    assert number(math.nan) == "NAN"
    assert "kInf" in number(math.inf)
    assert number(-math.inf).startswith("-")
    assert number(1e300) == number(math.inf)


@pytest.mark.parametrize(
    "text",
    [
        'a """ b',
        "a\\",
        'ends with "',
        "tab\tand bell\a",
        "\u202e reversed",
        "'''",
        'x" """" y',
        "\\N{DASH}",
    ],
)
def test_any_text_makes_a_docstring(text: str) -> None:
    literal = docstring(text)
    value = ast.literal_eval(literal)
    assert isinstance(value, str)
    assert all(c == "\n" or 32 <= ord(c) < 127 for c in literal)


@pytest.mark.parametrize("text", ["a */ b", "line\nbreak", "trailing \\", "??/", "\u202e"])
def test_any_text_makes_a_comment(text: str) -> None:
    safe = comment(text)
    assert "\n" not in safe and "*/" not in safe and not safe.rstrip().endswith("\\")
    assert safe.isascii()
