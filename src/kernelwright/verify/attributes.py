"""The plain attributes of a tree of modules: Python state that no state_dict knows.

In: a module. Out: its attributes that are numbers, strings, tensors and containers of those, by
dotted name. `preserved` undoes whatever a check does to a module: attributes, submodules, hooks,
classes and parameters (the objects, not the numbers in them).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify.compare import same_bits
from kernelwright.verify.inputs import map_tensors, wide

Attributes = dict[str, Any]

ABSENT = object()  # the value of an attribute that is not there

INTERNAL = frozenset(vars(nn.Module()))
PLAIN = (bool, int, float, complex, str, type(None), Tensor, torch.dtype)
CONTAINERS = (list, tuple, dict, set)


def plain(module: nn.Module) -> Attributes:
    """Copies of all plain attributes, by the path of their module and their name.

    A list of the module's own weights, as a recurrence has it, is no state besides them.
    """
    weights = {id(x) for x in (*module.parameters(), *module.buffers())}
    found: Attributes = {}
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            if name not in INTERNAL and is_plain(value) and not weights & _ids(value):
                found[f"{path}.{name}" if path else name] = _copied(value)
    return found


def _ids(value: Any) -> set[int]:
    return {id(leaf) for leaf in pytree.tree_leaves(value)}


def is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return not isinstance(value, nn.Parameter)
    if not isinstance(value, CONTAINERS):
        return False
    leaves = list(value) if isinstance(value, set) else pytree.tree_leaves(value)
    return all(isinstance(leaf, PLAIN) for leaf in leaves)


def assign(module: nn.Module, values: Attributes) -> None:
    """Set attributes by dotted name, on the modules that the tree has."""
    modules = dict(module.named_modules())
    for name, value in values.items():
        path, _, last = name.rpartition(".")
        if path in modules and value is ABSENT:
            modules[path].__dict__.pop(last, None)
        elif path in modules:
            object.__setattr__(modules[path], last, _copied(value))


def changed(before: Attributes, after: Attributes) -> list[str]:
    """The names whose values differ, new ones included."""
    return [name for name in after if name not in before or not same(before[name], after[name])]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return same_bits(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, CONTAINERS) and not isinstance(left, set):
        a, b = pytree.tree_flatten(left), pytree.tree_flatten(right)
        return a[1] == b[1] and all(map(same, a[0], b[0]))
    return bool(left == right) or left != left  # equal, or both NaN


def widen_attributes(module: nn.Module) -> nn.Module:
    """The plain tensors of a tree in float64, where `_apply` does not reach."""
    for name, value in plain(module).items():
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
            assign(module, {name: map_tensors(wide, value)})
    return module


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Whatever happens to the modules of the tree inside of the block is undone after it."""
    saved = [(child, type(child), _copied_dict(vars(child))) for child in module.modules()]
    try:
        yield
    finally:
        for child, its_class, before in saved:
            child.__class__ = its_class
            _restore(vars(child), before)


def _copied(value: Any) -> Any:
    if isinstance(value, set):
        return set(value)
    return pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, value)


def _copied_dict(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each attribute, with a copy of those that torch keeps parameters, modules and hooks in.

    Lists among them: a recurrence has its weights in one, and writes to it when they are set.
    """

    def is_written(name: str, value: Any) -> bool:
        return type(value) is list or (name in INTERNAL and isinstance(value, dict))

    return {
        name: (value, copy.copy(value) if is_written(name, value) else None)
        for name, value in attributes.items()
    }


def _restore(attributes: dict[str, Any], before: dict[str, tuple[Any, Any]]) -> None:
    for name in [name for name in attributes if name not in before]:
        del attributes[name]
    for name, (value, content) in before.items():
        attributes[name] = value
        if isinstance(content, list):
            value[:] = content
        elif content is not None:
            value.clear()
            value.update(content)
