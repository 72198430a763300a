"""A plain function with get_inputs() or get_cases(): no class, no state.

The function is the one named `reference`, else the one with the file's name, else the first public
one. A candidate is a file with a function of the same name, or with one public function.
"""

from __future__ import annotations

import ast
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.formats.kernelbench import cases_of, in_case
from kernelwright.formats.posed import (
    Case,
    Files,
    Format,
    Posed,
    defined,
    first_text,
    functions,
    parsed,
    text_of,
    with_class,
    with_neighbours,
)

CLASS = '''from torch import nn


class {name}(nn.Module):
    """{function} as a module."""

    def forward({taken}):
        return {function}({handed})
'''

ENTRY = """

_kw_module = ModelNew().eval()


def {function}(*args, **kwargs):
    return _kw_module(*args, **kwargs)
"""

ALIAS = "_kw_reference"


def _matches(path: Path) -> bool:
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        names = defined(text := text_of(path))
    except InputError:
        return False
    inputs = {"get_inputs", "get_cases"} & names.keys()
    return bool(inputs) and "Model" not in names and bool(functions(text))


def _function(posed: Posed) -> str:
    own = functions(posed.files[posed.main])
    return _chosen(own, Path(posed.main).stem)


def _chosen(own: list[str], stem: str) -> str:
    return next((name for name in ("reference", "model", stem) if name in own), own[0])


def with_model(text: str, stem: str) -> str:
    """The text of a file with class Model, which calls its function if there is no class yet."""
    own = functions(text)
    if "Model" in defined(text) or not own:
        return text
    return _with_model(text, _chosen(own, stem))


def with_model_new(text: str, model: str, stem: str) -> str:
    """The same for a candidate: the function that has the name of the model's, or the only one."""
    own, wanted = functions(text), functions(model)
    if "ModelNew" in defined(text) or not own or "Model" in defined(model) or not wanted:
        return text
    name = _chosen(wanted, stem)
    name = name if name in own else own[0]
    return f"{text.rstrip()}\n\n\n{_class(text, 'ModelNew', name, name)}"


def _with_model(text: str, function: str) -> str:
    """The function under another name as well: a submission defines one of its own name."""
    made = _class(text, "Model", function, ALIAS)
    return f"{text.rstrip()}\n\n\n{ALIAS} = {function}\n\n{made}"


def _class(text: str, name: str, function: str, called: str) -> str:
    """A module around a function of the text, with its parameters."""
    tree = parsed(text)
    nodes = tree.body if tree else []
    given = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == function).args
    for p in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if p is not None:
            p.annotation = None
    handed = [a.arg for a in (*given.posonlyargs, *given.args)]
    handed += [f"*{given.vararg.arg}"] if given.vararg else []
    handed += [f"{a.arg}={a.arg}" for a in given.kwonlyargs]
    handed += [f"**{given.kwarg.arg}"] if given.kwarg else []
    owner = ast.arg("self_" if "self" in handed else "self")
    (given.posonlyargs or given.args).insert(0, owner)
    return CLASS.format(
        name=name, function=called, taken=ast.unparse(given), handed=", ".join(handed)
    )


def _model(posed: Posed, case: Case) -> str:
    return in_case(_with_model(posed.files[posed.main], _function(posed)), case)


def _candidate(posed: Posed, answer: Files) -> Files:
    own, wanted = functions(first_text(answer)), _function(posed)
    if wanted not in own and len(own) != 1:
        return with_class(answer, f"ModelNew = {wanted}\n")
    function = wanted if wanted in own else own[0]
    return with_class(answer, _class(first_text(answer), "ModelNew", function, function))


def _submission(posed: Posed, emitted: str) -> Files:
    return {"submission.py": emitted.rstrip() + "\n" + ENTRY.format(function=_function(posed))}


FUNCTION = Format(
    "function",
    "a file with a function and get_inputs() or get_cases()",
    _matches,
    with_neighbours,
    lambda path: path.name,
    cases_of,
    _model,
    _candidate,
    _submission,
)
