"""A twin of a module: objects of its own all through the tree, over the very same tensors.

In: a module, and the class that its twin is to have. Out: the twin. Parameters, buffers and plain
tensors are the same objects. Modules, their tables and modes are new ones, and so are attributes,
as `copy.deepcopy` would copy them. What refers to the tree (bound methods, closures, handles of
hooks) refers to the twin's. Hooks are otherwise the user's own objects, which may be waiting for
calls, and what cannot be copied (locks, files) is shared.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

# A scripted module cannot be copied without its tensors.
KEPT = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.jit.ScriptModule)
ALIKE = (type(None), bool, int, float, complex, str, bytes, range, slice, type, types.ModuleType)
PLAIN = (list, dict, set, frozenset, tuple, collections.OrderedDict)
OF_FUNCTIONS = ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__")


def twin(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """An instance of another class with a twin of all that the module has."""
    new = kind.__new__(kind)
    _Twins(module).fill(module, new)
    return new


class _Twins:
    """Twins by the address of what they are twins of, which `sources` keeps from being freed.

    `inside` are the modules of the tree, those in lists and dicts among the attributes too, and
    `hooks` their tables of hooks.
    """

    def __init__(self, root: nn.Module) -> None:
        modules = list(_within(root, set()))
        tables = [table for m in modules for name, table in vars(m).items() if "_hooks" in name]
        self.inside, self.hooks = set(map(id, modules)), set(map(id, tables))
        self.made: dict[int, Any] = {}
        self.sources: list[Any] = []
        for x in [x for m in modules for x in (*m._parameters.values(), *m._buffers.values())]:
            self._note(x, x)  # for those that look here, as __deepcopy__ does

    def fill(self, module: nn.Module, new: nn.Module) -> None:
        self._note(module, new)
        for name, value in vars(module).items():
            vars(new)[name] = self.of(value)
        for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
            if name not in vars(module) and hasattr(module, name):
                object.__setattr__(new, name, self.of(getattr(module, name)))

    def of(self, value: Any) -> Any:
        """The twin of any value."""
        if isinstance(value, (*KEPT, *ALIKE)):
            return value
        if id(value) in self.made:
            return self.made[id(value)]
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, types.FunctionType | weakref.ref):
            return self.turned(value)
        return self._container(value) if type(value) in PLAIN else self._object(value)

    def _container(self, value: Any) -> Any:
        if isinstance(value, dict):
            table = self._note(value, type(value)())
            twin_of = self._hook if id(value) in self.hooks else self.of
            table.update((self.of(k), twin_of(v)) for k, v in value.items())
            return table
        if isinstance(value, tuple | frozenset):  # which cannot hold themselves but by others
            inside = type(value)([self.of(x) for x in value])
            return self.made.get(id(value)) or self._note(value, inside)
        new = self._note(value, type(value)())
        for x in value:
            (new.add if isinstance(new, set) else new.append)(self.of(x))
        return new

    def _hook(self, hook: Any) -> Any:
        """Torch's own objects are part of the module; others are the user's."""
        of_torch = type(hook).__module__.startswith("torch.")
        return self.of(hook) if of_torch else self.turned(hook)

    def turned(self, value: Any) -> Any:
        """What refers to the tree, referring to the twin's; anything else as it is."""
        if isinstance(value, nn.Module):
            return self.of(value) if id(value) in self.inside else value
        if isinstance(value, weakref.ref):
            aim = value()
            return weakref.ref(self.of(aim)) if id(aim) in self.inside else value
        if isinstance(value, types.MethodType):
            owner = self.turned(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if type(value) is functools.partial:
            parts = value.func, *value.args, *value.keywords.values()
            func, *rest = map(self.turned, parts)
            if all(a is b for a, b in zip(parts, (func, *rest), strict=True)):
                return value
            count = len(value.args)
            named = dict(zip(value.keywords, rest[count:], strict=True))
            return functools.partial(func, *rest[:count], **named)
        return self._function(value) if isinstance(value, types.FunctionType) else value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """A closure over modules of the tree, directly or through other functions."""
        if id(function) in self.made:
            return self.made[id(function)]  # type: ignore[no-any-return]
        self._note(function, function)  # one that calls itself
        before = [c.cell_contents if _is_full(c) else None for c in function.__closure__ or ()]
        after = [self.turned(x) for x in before]
        if all(a is b for a, b in zip(before, after, strict=True)):
            return function
        cells = tuple(
            old if a is b else types.CellType(b)
            for old, a, b in zip(function.__closure__ or (), before, after, strict=True)
        )
        parts = function.__name__, function.__defaults__, cells
        new = types.FunctionType(function.__code__, function.__globals__, *parts)
        for name in OF_FUNCTIONS:
            setattr(new, name, getattr(function, name))
        vars(new).update(vars(function))
        self.made[id(function)] = new
        return new

    def _object(self, value: Any) -> Any:
        """As deepcopy: by the object's own word on how it is copied, if it has any."""
        try:
            if isinstance(value, nn.Module):
                new = object.__new__(type(value))
                self.fill(value, new)
                return new
            if (own := getattr(value, "__deepcopy__", None)) is not None:
                return self._note(value, own(self.made))
            reduced = value.__reduce_ex__(4)
            return value if isinstance(reduced, str) else self._rebuilt(value, *reduced)
        except Exception:
            return self._note(value, value)

    def _rebuilt(
        self,
        value: Any,
        make: Callable[..., Any],
        arguments: tuple[Any, ...],
        state: Any = None,
        items: Iterator[Any] | None = None,
        pairs: Iterator[Any] | None = None,
        setter: Callable[[Any, Any], None] | None = None,
    ) -> Any:
        new = self._note(value, make(*map(self.of, arguments)))
        if state is not None:
            state = self.of(state)
            if setter is not None:
                setter(new, state)
            elif hasattr(new, "__setstate__"):
                new.__setstate__(state)
            else:
                fields, slots = state if isinstance(state, tuple) else (state, None)
                vars(new).update(fields or {})
                for name, field in (slots or {}).items():
                    setattr(new, name, field)
        for item in items or ():
            new.append(self.of(item))
        for key, item in pairs or ():
            new[self.of(key)] = self.of(item)
        return new

    def _note(self, value: Any, new: Any) -> Any:
        self.made[id(value)] = new
        self.sources.append(value)
        return new


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a function that is still being made
        return False


def _within(value: Any, seen: set[int]) -> Iterator[nn.Module]:
    """Modules in modules and in plain containers, each once."""
    if id(value) in seen or not isinstance(value, (nn.Module, *PLAIN)):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield value
    parts = vars(value) if isinstance(value, nn.Module) else value
    for part in list(parts.values() if isinstance(parts, dict) else parts):
        yield from _within(part, seen)
