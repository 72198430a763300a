"""module_db and op_db, which come with torch, imported also where `expecttest` is missing.

torch's testing code imports it for tests of its own that nobody runs here. Operators that draw
random numbers come with a wrapper that seeds inside of the call; here the caller seeds.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings
from functools import cache
from typing import Any

import torch


@cache
def databases() -> tuple[list[Any], list[Any]]:
    """The entries for modules, and those for operators."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    # That import forbids to set a few of torch's settings, in this process, for everybody.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = _called
    return module_db, op_db


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
