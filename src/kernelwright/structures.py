"""Nested inputs and outputs: containers that torch's pytree does not know yet are registered.

In: a value, or a module that is about to be traced. Out: nothing; afterwards dataclasses and the
user's own kinds of list, tuple and dict in it are nodes of the tree, and torch.export accepts them.
Lists, tuples, dicts, named tuples and torch.return_types are known to torch itself.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, cast

import torch
import torch.export
from torch import nn
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a nested value, in order."""
    register(value)
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def register(value: Any) -> None:
    """Make a node of every container inside; what a new node holds is looked at in turn."""
    while unknown := {type(leaf) for leaf in pytree.tree_leaves(value) if _is_container(leaf)}:
        for kind in unknown:
            _register(kind)


@contextlib.contextmanager
def registering_outputs(module: nn.Module) -> Iterator[None]:
    """While the module is traced, whatever it returns is registered before torch looks at it.

    A hook sees the outputs of the very run that is traced, so nothing runs a second time.
    """

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        register(output)
        _check_whole(output)

    handle = module.register_forward_hook(look)
    try:
        yield
    finally:
        handle.remove()


def _check_whole(value: Any) -> None:
    """Refuse what is written as a call of its class and would not be given again by that."""
    kind, fields = type(value), _fields(value)
    inside = value.values() if isinstance(value, dict) else value
    if fields is None and not (
        isinstance(value, dict | list | tuple) and kind in pytree.SUPPORTED_NODES
    ):
        return
    for part in inside if fields is None else fields.values():
        _check_whole(part)
    if kind in pytree.BUILTIN_TYPES or not hasattr(value, "__dict__"):
        return
    again = kind(value) if fields is None else kind(**fields)
    pairs = [(vars(value), vars(again))]
    if isinstance(value, dict):  # which may have more items than fields
        pairs.append((dict(value), dict(again)))
    for held, given in pairs:
        for name in held.keys() | given.keys():
            if _alike(held.get(name), given.get(name)):
                continue
            raise UnsupportedError(
                f"The forward sets {name} on a {kind.__name__} that it returns; "
                "give it to the constructor, which the emitted file calls."
            )


def _alike(one: Any, other: Any) -> bool:
    plain = (bool, int, float, complex, str, bytes)
    return one == other if isinstance(one, plain) else type(one) is type(other)


def dynamic_shapes(value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """What torch.export wants beside an input: lists in the place of nodes that it did not know."""

    def one(part: Any) -> Any:
        if not _is_registered(part):
            return of_leaf(part)
        children, _ = pytree.SUPPORTED_NODES[type(part)].flatten_fn(part)
        return [dynamic_shapes(child, of_leaf) for child in children]

    return pytree.tree_map(one, value, is_leaf=_is_registered)


def _is_registered(part: Any) -> bool:
    return type(part) in pytree.SUPPORTED_NODES and type(part) not in pytree.BUILTIN_TYPES


def neutral(value: Any) -> Any:
    """The value with the user's classes by name, since a model and its candidate have their own."""
    kind, fields = type(value), _fields(value)
    if fields is not None:
        return {kind.__name__: {name: neutral(part) for name, part in fields.items()}}
    if kind in (list, tuple):
        return kind(neutral(part) for part in value)
    if isinstance(value, dict):
        inner = {key: neutral(part) for key, part in value.items()}
        return inner if kind in pytree.BUILTIN_TYPES else {kind.__name__: inner}
    return value


def in_classes_of(module: nn.Module, value: Any) -> Any:
    """The value with the classes that the module's own file has under the same names."""
    kind, fields = type(value), _fields(value)
    if fields is not None:
        own = _counterpart(kind, vars(sys.modules.get(type(module).__module__, sys)))
        return own(**{name: in_classes_of(module, part) for name, part in fields.items()})
    if kind in (list, tuple):
        return kind(in_classes_of(module, part) for part in value)
    if kind in (dict, collections.OrderedDict):
        return kind((key, in_classes_of(module, part)) for key, part in value.items())
    return value


def _fields(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if f.init}
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return dict(zip(kind._fields, value, strict=True))
    return None


def _counterpart(kind: type, space: dict[str, Any]) -> type:
    inside = [getattr(v, kind.__name__, None) for v in space.values() if isinstance(v, ModuleType)]
    found = [space.get(kind.__name__), *inside, kind]
    return next(k for k in found if isinstance(k, type) and k.__qualname__ == kind.__qualname__)


def _is_container(leaf: Any) -> bool:
    kind = type(leaf)
    if kind in pytree.SUPPORTED_NODES or isinstance(leaf, torch.Size):
        return False
    return dataclasses.is_dataclass(kind) or isinstance(leaf, dict | list | tuple)


def _register(kind: Any) -> None:
    if dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(cast("type[Any]", kind))
        return
    is_dict = issubclass(kind, dict)
    pytree.register_pytree_node(
        kind,
        lambda node: (list(node.values()), list(node)) if is_dict else (list(node), None),
        lambda values, keys: kind(zip(keys, values, strict=True) if is_dict else values),
        flatten_with_keys_fn=_flatten_dict_with_keys if is_dict else _flatten_with_keys,
    )


def _flatten_with_keys(node: Iterable[Any]) -> tuple[list[tuple[Any, Any]], None]:
    return [(pytree.SequenceKey(i), part) for i, part in enumerate(node)], None


def _flatten_dict_with_keys(node: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    return [(pytree.MappingKey(key), part) for key, part in node.items()], list(node)
