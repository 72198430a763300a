"""Tracing many small models: what torch prepares for each in the same way is prepared once.

torch.export's second trace keeps composite operators whole. To that end it looks for all that torch
has, and gives each of those five hundred other kernels for the time being: a quarter of a second,
whatever the model is, and half of its tracing. Here they are found once, and their kernels kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from torch._export.utils import _collect_all_valid_cia_ops
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

composites = lru_cache(maxsize=1)(_collect_all_valid_cia_ops)
override = exported_program._override_composite_implicit_decomp
Kept = list[tuple[Any, dict[Any, Any], Any]]  # an operator, its kernels, its fake kernel
_kept: dict[frozenset[tuple[Any, Callable[..., Any]]], Kept] = {}


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Meanwhile programs are functionalised so."""
    exported_program._collect_all_valid_cia_ops = composites
    exported_program._override_composite_implicit_decomp = overridden
    try:
        yield
    finally:
        exported_program._collect_all_valid_cia_ops = _collect_all_valid_cia_ops
        exported_program._override_composite_implicit_decomp = override


@contextlib.contextmanager
def overridden(new: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """What torch's own context does, from what that has done the first time."""
    wanted = frozenset(new.items())
    if wanted not in _kept:
        with override(new):
            _kept[wanted] = [
                (op, op.py_kernels.copy(), op_implementations_dict.get(op)) for op in new
            ]
            yield
        return
    before = [(op, op.py_kernels.copy()) for op in new]
    for op, kernels, fake in _kept[wanted]:
        _give(op, kernels)
        if fake is not None:
            op_implementations_dict.setdefault(op, fake)
    try:
        yield
    finally:
        for op, kernels in before:
            _give(op, kernels)
            op_implementations_dict.pop(op, None)


def _give(op: Any, kernels: Mapping[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
