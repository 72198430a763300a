"""SOL-ExecBench's form: a folder with definition.json and workload.jsonl.

The definition names axes, inputs and outputs, and holds a reference with `run(...)`; each line of
the workload binds the axes. A candidate is a solution in JSON: sources, and the entry point that
returns its outputs or, in destination-passing style, is given them. A file of Python with `run` is
taken as well.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.errors import InputError
from kernelwright.formats.posed import (
    Case,
    Files,
    Format,
    Posed,
    defined,
    text_of,
)

DEFINITION, WORKLOAD = "definition.json", "workload.jsonl"

# Of both sides, so that one output is a tensor whether it was returned bare, in a tuple or a dict.
RESULTS = """

def _kw_results(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    return value[0] if isinstance(value, tuple | list) and len(value) == 1 else value
"""

MODEL = """

import torch as _kw_torch

_kw_reference = {entry}
_KW_AXES = {axes!r}
_KW_INPUTS = {inputs!r}


class Model(_kw_torch.nn.Module):
    def forward(self, {parameters}):
        return _kw_results(_kw_reference({parameters}))


def _kw_random(shape, dtype):
    kind = getattr(_kw_torch, dtype)
    if kind.is_floating_point:
        return _kw_torch.randn(shape).to(kind)
    return _kw_torch.randint(0, 2 if dtype == "bool" else 128, shape).to(kind)


def get_inputs():
    custom = {custom}
    made = custom(dict(_KW_AXES), _kw_torch.device("cpu")) if custom else {{}}
    return [
        made[name] if name in made else value if shape is None else _kw_random(shape, dtype)
        for name, shape, dtype, value in _KW_INPUTS
    ]


def get_init_inputs():
    return []
"""

NEW = """

import torch as _kw_torch

_kw_entry = {entry}
_KW_SHAPES = {shapes!r}
_KW_OUTPUTS = {outputs!r}


class ModelNew(_kw_torch.nn.Module):
    def forward(self, *inputs):
        if _KW_OUTPUTS is None:
            return _kw_results(_kw_entry(*inputs))
        axes = {{}}
        for given, names in zip(inputs, _KW_SHAPES):
            axes.update(zip(names or (), getattr(given, "shape", ())))
        where = next(x.device for x in inputs if isinstance(x, _kw_torch.Tensor))
        outputs = [
            _kw_torch.empty(
                [_kw_size(size, axes) for size in shape],
                dtype=getattr(_kw_torch, dtype),
                device=where,
            )
            for shape, dtype in _KW_OUTPUTS
        ]
        _kw_entry(*inputs, *outputs)
        return _kw_results(tuple(outputs))


def _kw_size(size, axes):
    return size if isinstance(size, int) else axes[size]
"""

BUILT = """from pathlib import Path as _KwPath

from torch.utils.cpp_extension import load as _kw_load

_kw_here = _KwPath(__file__).parent
_kw_extension = _kw_load(
    "solution",
    [str(_kw_here / name) for name in {sources!r}],
    extra_cflags={cflags!r},
    extra_cuda_cflags={cuda_cflags!r},
    extra_ldflags={ld_flags!r},
)
"""

ENTRY = """

_kw_module = ModelNew().eval()


def solve(*inputs):
    return _kw_module(*inputs)
"""

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _read(path: Path) -> Files:
    return {name: text_of(path / name) for name in (DEFINITION, WORKLOAD)}


def _loaded(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{what} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InputError(f"{what} must hold an object.")
    return found


def definition_of(posed: Posed) -> dict[str, Any]:
    found = _loaded(posed.files[DEFINITION], DEFINITION)
    missing = [key for key in ("axes", "inputs", "outputs", "reference") if key not in found]
    if missing:
        raise InputError(f"{DEFINITION} has no {missing[0]!r}; a definition needs one.")
    return found


def _cases(posed: Posed) -> list[Case]:
    lines = [line for line in posed.files[WORKLOAD].splitlines() if line.strip()]
    loads = [_loaded(line, f"A line of {WORKLOAD}") for line in lines]
    specs = [load.get("workload", load) for load in loads]
    return [Case(", ".join(f"{k}={v}" for k, v in s["axes"].items()), s) for s in specs]


def sizes(definition: Mapping[str, Any], bound: Mapping[str, int]) -> dict[str, int]:
    """Every axis as a number: bound by the workload, constant, or computed from others."""
    found = dict(bound)
    todo = {name: axis for name, axis in definition["axes"].items() if name not in found}
    for name, axis in todo.items():
        if axis["type"] == "const":
            found[name] = axis["value"]
    for name, axis in todo.items():
        if axis["type"] == "expr":
            found[name] = int(_computed(ast.parse(axis["expression"], mode="eval").body, found))
    unbound = [name for name in todo if name not in found]
    if unbound:
        raise InputError(f"The workload does not bind the axis {unbound[0]!r}.")
    return found


def _computed(node: ast.expr, axes: Mapping[str, int]) -> Any:
    """Arithmetic on axes, which is all that an expression may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name) and node.id in axes:
        return axes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_computed(node.left, axes), _computed(node.right, axes))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_computed(node.operand, axes))
    raise InputError(f"The axis expression {ast.unparse(node)!r} is no arithmetic on axes.")


def _model(posed: Posed, case: Case) -> str:
    definition = definition_of(posed)
    axes, given = sizes(definition, case.spec["axes"]), case.spec.get("inputs", {})
    inputs = []
    for name, tensor in definition["inputs"].items():
        kind = given.get(name, {"type": "random"})
        if kind["type"] == "safetensors":
            raise InputError(f"The input {name} is a safetensors file, which is not carried along.")
        shape = tensor["shape"]
        shape = None if shape is None else [axes.get(size, size) for size in shape]
        inputs.append((name, shape, tensor["dtype"], kind.get("value")))
    made = MODEL.format(
        entry="run",
        axes=axes | {n: g["value"] for n, g in given.items() if "value" in g},
        inputs=inputs,
        parameters=", ".join(definition["inputs"]),
        custom=definition.get("custom_inputs_entrypoint") or "None",
    )
    reference: str = definition["reference"]
    return reference.rstrip() + "\n" + RESULTS + made


def _candidate(posed: Posed, answer: Files) -> Files:
    name, text = next(iter(answer.items()))
    if name.endswith(".json"):
        return _solved(posed, _loaded(text, name))
    if "ModelNew" in defined(text):
        return answer
    return {**answer, name: text.rstrip() + "\n" + RESULTS + _new(posed, "run", False)}


def _new(posed: Posed, entry: str, passing: bool) -> str:
    """ModelNew around an entry point; outputs are made for it in destination-passing style."""
    definition = definition_of(posed)
    constant = {n: a["value"] for n, a in definition["axes"].items() if a["type"] == "const"}
    outputs = [
        ([constant.get(size, size) for size in tensor["shape"] or ()], tensor["dtype"])
        for tensor in definition["outputs"].values()
    ]
    shapes = [tensor["shape"] for tensor in definition["inputs"].values()]
    return NEW.format(entry=entry, shapes=shapes, outputs=outputs if passing else None)


def _solved(posed: Posed, solution: Mapping[str, Any]) -> Files:
    """The sources of a solution, and its entry's text with ModelNew behind it."""
    try:
        spec, sources = solution["spec"], {s["path"]: s["content"] for s in solution["sources"]}
        file, _, function = spec["entry_point"].partition("::")
        text = sources.pop(file)
    except (KeyError, TypeError) as error:
        raise InputError(f"The solution has no {error}; it needs spec and sources.") from error
    passing = spec.get("destination_passing_style", True)
    if file.endswith(".py"):
        return {file: text.rstrip() + "\n" + RESULTS + _new(posed, function, passing), **sources}
    options = spec.get("compile_options") or {}
    built = BUILT.format(
        sources=[p for p in (file, *sources) if p.endswith((".cu", ".cpp", ".cc", ".cxx"))],
        **{key: options.get(key, []) for key in ("cflags", "cuda_cflags", "ld_flags")},
    )
    entry = f"_kw_extension.{function}"
    made = built + RESULTS + _new(posed, entry, passing)
    return {"solution_entry.py": made, file: text, **sources}


def _submission(posed: Posed, emitted: str) -> Files:
    name = definition_of(posed).get("name", posed.name)
    solution = {
        "name": f"{name}_kernelwright",
        "definition": name,
        "author": "kernelwright",
        "description": "Written by kernelwright from the reference.",
        "spec": {
            "languages": ["pytorch"],
            "target_hardware": ["LOCAL"],
            "entry_point": "main.py::solve",
            "dependencies": ["torch"],
            "destination_passing_style": False,
            "binding": None,
        },
        "sources": [{"path": "main.py", "content": emitted.rstrip() + "\n" + ENTRY}],
    }
    return {"solution.json": json.dumps(solution, indent=2) + "\n"}


SOL = Format(
    "sol-execbench",
    "a folder with definition.json and workload.jsonl",
    lambda path: (path / DEFINITION).is_file(),
    _read,
    lambda path: DEFINITION,
    _cases,
    _model,
    _candidate,
    _submission,
)
