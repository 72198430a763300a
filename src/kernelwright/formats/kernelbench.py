"""KernelBench's form, and that of its Verified edition: one file with class Model and get_inputs().

A candidate is a file with class ModelNew. With `get_cases()` in the place of `get_inputs()` there
are several choices of inputs: each item of what it returns is what get_inputs() would return.
"""

from __future__ import annotations

import ast
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.formats.posed import (
    Case,
    Files,
    Format,
    Posed,
    defined,
    first_text,
    parsed,
    text_of,
    with_neighbours,
)

ONE_CASE = '''

def get_inputs():
    """The arguments of forward in case {number}."""
    return list(get_cases())[{number}]
'''


def _matches(path: Path) -> bool:
    """Whatever says what its inputs are; and what cannot even be read or parsed."""
    if path.suffix != ".py" or path.is_dir():
        return False
    try:
        text = text_of(path)
    except InputError:
        return True
    return parsed(text) is None or bool({"get_inputs", "get_cases"} & defined(text).keys())


def cases_of(posed: Posed) -> list[Case] | None:
    return None if "get_cases" in defined(posed.files[posed.main]) else [Case()]


def in_case(text: str, case: Case) -> str:
    """A text with get_cases(), and the get_inputs() of one case."""
    number = case.spec.get("number")
    return text if number is None else text.rstrip() + "\n" + ONE_CASE.format(number=number)


def _model(posed: Posed, case: Case) -> str:
    return in_case(posed.files[posed.main], case)


def _candidate(posed: Posed, answer: Files) -> Files:
    if defined(first_text(answer)).get("ModelNew") is not ast.ClassDef and parsed(
        first_text(answer)
    ):
        raise InputError(f"{next(iter(answer))} defines no `class ModelNew`; name the module so.")
    return answer


KERNELBENCH = Format(
    "kernelbench",
    "a file with class Model, get_inputs() and get_init_inputs()",
    _matches,
    with_neighbours,
    lambda path: path.name,
    cases_of,
    _model,
    _candidate,
    lambda posed, emitted: {"model_new.py": emitted},
)
