"""A plain function with get_inputs() or get_cases(): no class, no state.

The function is the one named `reference`, else the one with the file's name, else the first public
one. A candidate is a file with a function of the same name, or with one public function.
"""

from __future__ import annotations

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
    text_of,
    with_class,
    with_neighbours,
)

CLASS = '''from torch import nn


class {name}(nn.Module):
    """{function} as a module."""

    def forward(self, *args, **kwargs):
        return {function}(*args, **kwargs)
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
    wanted = ("reference", Path(posed.main).stem)
    return next((name for name in wanted if name in own), own[0])


def _model(posed: Posed, case: Case) -> str:
    """The function under another name as well: a submission defines one of its own name."""
    text, function = posed.files[posed.main].rstrip(), _function(posed)
    made = CLASS.format(name="Model", function=ALIAS)
    return in_case(f"{text}\n\n\n{ALIAS} = {function}\n\n{made}", case)


def _candidate(posed: Posed, answer: Files) -> Files:
    own, wanted = functions(first_text(answer)), _function(posed)
    if wanted not in own and len(own) != 1:
        return with_class(answer, f"ModelNew = {wanted}\n")
    function = wanted if wanted in own else own[0]
    return with_class(answer, CLASS.format(name="ModelNew", function=function))


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
