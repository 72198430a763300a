"""The table of what tracing took for granted, as text; runtime/baked.py reads it again."""

from __future__ import annotations

from typing import Any

from torch import nn

from kernelwright.emit.lines import filled, listed
from kernelwright.emit.values import python
from kernelwright.runtime.baked import (
    attributes,
    class_name,
    described,
    is_plain,
    present,
    traced_hooks,
)

WIDTH = 86


def baked_in(root: nn.Module, follows_mode: bool) -> list[list[str]]:
    """A row for all modules of the tree that are alike, each as the lines of a tuple."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        alike.setdefault(_described(path, module, follows_mode), []).append(path)
    return [_row(paths, items) for items, paths in alike.items()]


def _described(path: str, module: nn.Module, follows_mode: bool) -> tuple[str, ...]:
    fields: dict[str, Any] = attributes(module)
    if follows_mode:
        fields = {"training": module.training, **fields}
    plain = {name: value for name, value in fields.items() if is_plain(value)}
    others = {name: described(value) for name, value in fields.items() if name not in plain}
    kind = class_name(type(module)) if path else "Model"
    items = [kind, present(module), traced_hooks(module), plain, others]
    return tuple(map(_item, items))


def _row(paths: list[str], items: tuple[str, ...]) -> list[str]:
    places = python(tuple(paths))
    if len(places) > WIDTH:
        places = "\n    ".join(filled("(", [python(path) for path in paths], ")", margin=8))
    return listed("", "(", [places, *items], "),", margin=4)


def _item(value: object) -> str:
    """On one line where it fits, else a line for each entry of the dict."""
    text = python(value)
    if not isinstance(value, dict) or len(text) <= WIDTH:
        return text
    inside = [f"        {python(k)}: {python(v)}," for k, v in value.items()]
    return "\n".join(["{", *inside, "    }"])
