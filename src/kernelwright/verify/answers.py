"""What the candidate's answers must look like before anybody looks into them.

In: a request and an answer, which is plain data already. Out: whether its parts are there, names
are texts and counts are numbers. Values are judged, whatever they are.
"""

from __future__ import annotations

import math
from typing import Any

ABOUT = {
    "state_dict": {str: object},
    "state": {str: object},
    "attributes": {str: [str]},
    "modules": {str: str},
}
VALUE = {"value": object}
ANSWERS: dict[str, Any] = {
    "load": ABOUT,
    "construct": ABOUT,
    "run": {**VALUE, "fell": ({str: int}, None)},
    "plain": {"value": {"known": [str]}},
    "world": {"value": [str]},
    "prepare": {"note": (str, None)},
    "rounds": {"readings": [[[float]]], "fell_back": {str: int}},
    "result": VALUE,
}


def is_answer(request: dict[str, Any], answer: Any) -> bool:
    """Whether this may be the answer; one that tells of an exception has no other parts."""
    if not isinstance(answer, dict):
        return False
    if {"raised", "fatal"} & answer.keys() or request.get("unseen"):
        return True
    return _fits(answer, ANSWERS.get(request.get("what", request["do"]), {}))


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(form, list):
        return type(value) is list and all(_fits(x, form[0]) for x in value)
    if isinstance(form, dict) and isinstance(value, dict):
        if all(isinstance(key, str) for key in form):
            return all(_fits(value.get(key), inside) for key, inside in form.items())
        ((key, inside),) = form.items()
        return all(type(k) is key and _fits(v, inside) for k, v in value.items())
    if form is float:
        return type(value) in (int, float) and math.isfinite(value)
    return value is None if form is None else isinstance(form, type) and isinstance(value, form)
