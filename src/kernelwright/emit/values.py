"""Python values as text: literals, nested outputs to rebuild, nested inputs to reach and check.

In: a value, and what to write for the leaves and the classes in it. Out: expressions. Containers
are those of torch's pytree: lists, tuples, dicts, named tuples, torch.return_types, dataclasses and
the user's own kinds of list, tuple and dict.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError

PLAIN = (int, bool, str, bytes, complex, type(None), type(Ellipsis))
TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)
BUILTIN = (tuple, list, dict)


def literal(value: Any) -> str | None:
    """The text of a number, a string, a dtype and the like; None if there is none."""
    kind = type(value)
    if kind is float:
        return repr(value) if value - value == 0 else f'float("{value}")'
    if kind is complex and value - value != 0:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind in PLAIN:
        return quoted(value) if kind is str else repr(value)
    if isinstance(value, TORCH_NAMES):
        return str(value)
    if kind is torch.device:
        return f'torch.device("{value}")'
    if kind is torch.Size:
        return f"torch.Size({list(value)})"
    if kind is range:
        return repr(value)
    return None


def quoted(text: str) -> str:
    """A string literal, in double quotes where it can be."""
    plain = text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else repr(text)


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """How the parts of a container are reached (`[0]`, `["mask"]`, `.x`), and the parts themselves.

    None for what is no container, and for a dict with a key that has no literal.
    """
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind in pytree.SUPPORTED_NODES:
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, torch.Size):
        return None
    if is_named_tuple(kind):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, dict):
        keys = [literal(key) for key in value]
        if None in keys:
            return None
        return [(f"[{key}]", part) for key, part in zip(keys, value.values(), strict=True)]
    if isinstance(value, list | tuple | collections.deque):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    return None


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def classes(value: Any) -> list[type]:
    """The classes of the containers in a value that an expression must be able to name."""
    found: dict[type, None] = {}
    kind = type(value)
    if (inner := parts(value)) is not None:
        if kind not in BUILTIN and not _is_return_type(kind):
            found[kind] = None
        for _, part in inner:
            found |= dict.fromkeys(classes(part))
    return list(found)


def _is_return_type(kind: type) -> bool:
    return kind.__module__ == "torch.return_types"


def rebuild(value: Any, leaf: Callable[[Any], str | None], names: Mapping[type, str]) -> str:
    """The expression that makes the same structure again: `Output(a=product, b=(bias, 3))`.

    `leaf` gives the text of what it knows (tensors, sizes), and None for the rest; `names` says how
    each of `classes(value)` is called.
    """
    if (text := leaf(value)) is not None:
        return text
    inner = parts(value)
    if inner is None:
        if (text := literal(value)) is None:
            raise UnsupportedError(
                f"The forward returns a {type(value).__name__}, which cannot be written as source; "
                "return tensors, numbers, strings, or containers of them."
            )
        return text
    written = [(place, rebuild(part, leaf, names)) for place, part in inner]
    return constructed(value, written, names)


def python(value: Any) -> str:
    """A value that is made of literals alone."""
    return rebuild(value, lambda part: None, {})


def constructed(value: Any, written: list[tuple[str, str]], names: Mapping[type, str]) -> str:
    kind = type(value)
    texts = [text for _, text in written]
    sequence = f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    if _is_return_type(kind):
        return f"torch.return_types.{kind.__name__}({sequence})"
    if dataclasses.is_dataclass(kind) or is_named_tuple(kind):
        fields = ", ".join(f"{place[1:]}={text}" for place, text in written)
        return f"{names[kind]}({fields})"
    if isinstance(value, dict):
        items = ", ".join(f"{place[1:-1]}: {text}" for place, text in written)
        if kind is dict:
            return f"{{{items}}}"
        if isinstance(value, collections.defaultdict):
            return f"{names[kind]}({_factory(value)}, {{{items}}})"
        return f"{names[kind]}({{{items}}})"
    if kind is tuple:
        return sequence
    listed = f"[{', '.join(texts)}]"
    return listed if kind is list else f"{names[kind]}({listed})"


def _factory(value: collections.defaultdict[Any, Any]) -> str:
    made = value.default_factory
    if made is None or (isinstance(made, type) and made.__module__ == "builtins"):
        return "None" if made is None else made.__name__
    raise UnsupportedError(
        "The forward returns a defaultdict with a factory of its own; return a dict instead."
    )


def places(value: Any, text: str) -> list[str]:
    """How each leaf of torch's pytree is reached: `xs[0]`, `d["mask"]`, `out.loss`.

    The tree may leave None out, as that of a dataclass does, or have an order of its own.
    """
    leaves, tree = pytree.tree_flatten(value)
    marks = [object() for _ in leaves]
    found = dict(_reached(pytree.tree_unflatten(marks, tree), text))
    return [found[mark] for mark in marks]


def _reached(value: Any, text: str) -> Iterator[tuple[Any, str]]:
    inner = parts(value)
    if inner is None:
        yield value, text
        return
    for place, part in inner:
        yield from _reached(part, text + place)


def built_otherwise(value: Any, text: str, names: Mapping[type, str]) -> tuple[str, str]:
    """A test that is true of an input which is not such a container, and the cause to give."""
    kind, inner = type(value), parts(value) or []
    name = f"torch.return_types.{kind.__name__}" if _is_return_type(kind) else _called(kind, names)
    test = f"type({text}) is not {name}"
    if isinstance(value, dict):
        keys = [place[1:-1] for place, _ in inner]
        test += f" or list({text}) != [{', '.join(keys)}]"
    elif isinstance(value, list | tuple | collections.deque) and not hasattr(kind, "_fields"):
        test += f" or len({text}) != {len(inner)}"
    return test, f"{text} is not built as in the example"


def _called(kind: type, names: Mapping[type, str]) -> str:
    return kind.__name__ if kind in BUILTIN else names[kind]


def different(value: Any, text: str) -> str:
    """A test that is true unless the expression has this very plain value: 1 is not True or 1.0."""
    shown = literal(value)
    if value is None or value is Ellipsis or isinstance(value, bool):
        return f"{text} is not {shown}"
    if isinstance(value, float) and value != value:
        return f"type({text}) is not float or {text} == {text}"
    if isinstance(value, float) and value == 0:
        return f"type({text}) is not float or str({text}) != {quoted(str(value))}"
    if isinstance(value, int | float | str | bytes | complex):
        return f"type({text}) is not {type(value).__name__} or {text} != {shown}"
    return f"{text} != {shown}"
