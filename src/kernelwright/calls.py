"""A call of any module as tensors in and tensors out; what stands around them is laid apart.

In: the arguments of a call. Out: `Given`: its tensors, and a key that says how they lie in
arguments of any structure: nested containers, dataclasses, and objects that a call may change, such
as a cache. `Call` runs a forward on such tensors and notes what it leaves behind: results, and how
the objects look afterwards, the same objects where they are the same. `Flat` is a module of that,
which can be compiled like any other. The one idea: state of an argument is an input and an output
like all others, and the key that tells how it was taken apart tells how to put it together.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.errors import UnsupportedError
from kernelwright.runtime.baked import described

Key = tuple[Any, ...]
PLAIN = (type(None), bool, int, str, bytes, complex, type(Ellipsis), torch.Size, range)
NAMES = (torch.dtype, torch.layout, torch.memory_format, torch.device, type, enum.Enum)
CLOSED = (types.ModuleType, nn.Module, torch.Generator)
DEEPEST = 24


class Given:
    """The arguments of one call, taken apart.

    `tensors` are each there once, `numbers` are integers inside of objects, `others` what is
    compared by its description, and `homes` the containers and objects that a call may change.
    """

    def __init__(self, value: Any) -> None:
        self._empty()
        self.key = self.of(value)

    def _empty(self) -> None:
        self.tensors: list[Tensor] = []
        self.numbers: list[Any] = []
        self.others: list[Any] = []
        self.homes: list[Any] = []
        self.known: dict[int, int] = {}
        self.seen: dict[int, Key] = {}
        self.depth = 0

    @property
    def sizes(self) -> tuple[Any, ...]:
        return (*(tuple(x.shape) for x in self.tensors), *self.numbers)

    def of(self, value: Any) -> Key:
        """How a value is built, with its tensors by number."""
        kind = type(value)
        if isinstance(value, Tensor):
            if id(value) not in self.seen:
                self.seen[id(value)] = "tensor", len(self.tensors)
                self.tensors.append(value)
            return self.seen[id(value)]
        if self.depth and kind in (int, torch.SymInt):
            return self.number(value)
        if kind in PLAIN or isinstance(value, NAMES):
            return "plain", kind, value
        if kind is float:
            return "plain", kind, value.hex()
        if id(value) in self.known:
            return "home", self.known[id(value)]
        if isinstance(value, tuple):
            return "tuple", kind, tuple(map(self.of, value))
        if opens(value):
            self.known[id(value)] = number = len(self.homes)
            self.homes.append(value)
            return "new", number, kind, *self.content(value)
        return self.seen[id(value)] if id(value) in self.seen else self.other(value)

    def other(self, value: Any) -> Key:
        self.seen[id(value)] = "other", len(self.others), described(value)
        self.others.append(value)
        return self.seen[id(value)]

    def number(self, value: Any) -> Key:
        self.numbers.append(value)
        return "number", len(self.numbers) - 1

    def content(self, value: Any) -> tuple[Key, Key]:
        """What a container or an object holds: items, by their keys in a dict, and attributes."""
        items: Key = ()
        if isinstance(value, dict):
            items = tuple((self.of(k), self.of(v)) for k, v in value.items())
        elif isinstance(value, list | collections.deque):
            items = tuple(map(self.of, value))
        fields = fields_of(value)
        if self.depth > DEEPEST:
            raise UnsupportedError(f"A {type(value).__name__} of a call holds itself, or too much.")
        self.depth += bool(fields)
        held = tuple((name, self.of(part)) for name, part in fields.items())
        self.depth -= bool(fields)
        return items, held


class Left(Given):
    """What a call leaves behind, in terms of what it was given.

    Integers inside of objects are those of the example, unless they are `free`.
    """

    def __init__(self, tensors: Sequence[Any], others: Sequence[Any], homes: Any, free: bool):
        self._empty()
        self.free = free
        self.homes = [homes[i] for i in range(len(homes))]
        self.known = {id(home): i for i, home in enumerate(self.homes)}
        self.seen = {id(x): ("other", i) for i, x in enumerate(others)}
        self.seen |= {id(x): ("given", i) for i, x in enumerate(tensors)}

    def number(self, value: Any) -> Key:
        if self.free:
            return super().number(value)
        if type(value) is not int:
            raise UnsupportedError("A size of the call is kept as a number in what it gives.")
        return "plain", int, value

    def other(self, value: Any) -> Key:
        raise UnsupportedError(
            f"The forward gives a {type(value).__name__}, and what that holds is not known; "
            "return tensors, numbers, strings, or objects and containers of them."
        )


def opens(value: Any) -> bool:
    """Whether a value is taken apart: a plain container, or an object that holds its state."""
    if isinstance(value, dict | list | collections.deque):
        return True
    if isinstance(value, CLOSED) or callable(value):
        return False
    return hasattr(value, "__dict__") and type(value).__module__ not in ("builtins", "weakref")


def fields_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    fields = dict(getattr(value, "__dict__", ()))
    for name in _slots(type(value)):
        if name not in fields and hasattr(value, name):
            fields[name] = getattr(value, name)
    return fields


def _slots(kind: type) -> list[str]:
    return copyreg._slotnames(kind)  # type: ignore[attr-defined,no-any-return]


class Built:
    """Values put together from keys: of the tensors, numbers and objects of a call."""

    def __init__(self, given: Sequence[Any] = (), homes: Sequence[Any] = ()) -> None:
        self.parts: dict[str, Sequence[Any]] = {"given": given}
        self.homes: dict[int, Any] = dict(enumerate(homes))

    def having(self, **parts: Sequence[Any]) -> Built:
        """With what keys name by number: `tensor`, `number` and `other`."""
        self.parts.update(parts)
        return self

    def of(self, key: Key) -> Any:
        what = key[0]
        if what in self.parts:
            return self.parts[what][key[1]]
        if what == "plain":
            return float.fromhex(key[2]) if key[1] is float else key[2]
        if what == "home":
            return self.homes[key[1]]
        if what == "tuple":
            inside = [self.of(part) for part in key[2]]
            returned = key[1].__module__ == "torch.return_types"
            return key[1](inside) if returned else tuple.__new__(key[1], inside)
        _, number, kind, *content = key
        self.homes[number] = made = kind.__new__(kind)
        self.fill(made, *content)
        return made

    def fill(self, value: Any, items: Key, fields: Key) -> None:
        """Give a container or an object what it holds, and no more."""
        if isinstance(value, dict):
            base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            pairs = [(self.of(k), self.of(v)) for k, v in items]
            base.clear(value)
            for name, part in pairs:
                base.__setitem__(value, name, part)
        elif isinstance(value, list | collections.deque):
            inside = [self.of(part) for part in items]
            value.clear()
            value.extend(inside)
        held = {name: self.of(part) for name, part in fields}
        namespace = getattr(value, "__dict__", {})
        for name in [name for name in namespace if name not in held]:
            del namespace[name]
        slots = _slots(type(value))
        for name, part in held.items():
            if name in slots:
                object.__setattr__(value, name, part)
            else:
                namespace[name] = part


@dataclass(frozen=True)
class Autocast:
    """To what products are rounded on a kind of device, as the caller has asked for it."""

    device: str
    dtype: torch.dtype


def autocast_of(device: str) -> Autocast | None:
    if not torch.is_autocast_enabled(device):
        return None
    return Autocast(device, torch.get_autocast_dtype(device))


@contextlib.contextmanager
def ambient(autocast: Autocast | None) -> Iterator[None]:
    """Autocast as it is where a forward is called; a tracer does not see it begin or end."""
    if autocast is None:
        yield
        return
    device = autocast.device
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.set_autocast_dtype(device, autocast.dtype)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.set_autocast_cache_enabled(cached)


def without_autocast(autocast: Autocast | None) -> Any:
    """For what has its casts in it already."""
    if autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(autocast.device, enabled=False)


@dataclass(frozen=True)
class After:
    """The result of a call and the objects that it changed, with their contents.

    Of the tensors that `Flat` gives, `count` stand for themselves; behind them are those whose
    lengths are `numbers`, and last what tensors have become that were written into.
    """

    result: Key
    changed: tuple[tuple[int, Key], ...]
    count: int
    numbers: int


class Call:
    """A forward on the tensors of a call that is built as this one.

    `free` are the numbers that may be others in each call: they come as lengths of tensors behind
    the others. `written` are the tensors that the forward writes into.
    """

    def __init__(self, given: Given, autocast: Autocast | None) -> None:
        self.key, self.others, self.numbers = given.key, given.others, given.numbers
        self.autocast = autocast
        self.free: tuple[int, ...] = ()
        self.written: tuple[int, ...] = ()
        self.after: After | None = None

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Call:
        return self

    def taken(self, given: Given) -> tuple[Tensor, ...]:
        """What `Flat` takes in a call: its tensors, and the free numbers as lengths."""
        return (*given.tensors, *(_carrier(given.numbers[i], given.tensors[0]) for i in self.free))

    def unwritable(self, given: Given) -> str | None:
        """Why what this call writes into cannot be given what it becomes, or None."""
        if not self.written:
            return None
        if any(given.tensors[i].requires_grad for i in self.written):
            return "the call writes into a tensor that asks for gradients"
        homes = [x.untyped_storage().data_ptr() for x in given.tensors]
        if any(homes.count(homes[i]) > 1 for i in self.written):
            return "the call writes into memory that two of its tensors share"
        return None

    def __call__(self, model: nn.Module, taken: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results as tensors alone."""
        count = len(taken) - len(self.free)
        tensors, numbers = list(taken[:count]), list(self.numbers)
        for i, carrier in zip(self.free, taken[count:], strict=True):
            numbers[i] = carrier.shape[0]
        for i in self.written:
            tensors[i] = tensors[i].clone()
        build = Built().having(tensor=tensors, number=numbers, other=self.others)
        args, kwargs = build.of(self.key)
        known = tensors, self.others, build.homes, bool(self.free)
        before = Left(*known)
        contents = {i: before.content(home) for i, home in build.homes.items()}
        with ambient(self.autocast):
            result = model.forward(*args, **kwargs)
        left = Left(*known)
        made = left.of(result)
        changed = []
        for i, home in build.homes.items():
            start = len(left.numbers)
            now = left.content(home)
            if now != contents[i] or len(left.numbers) > start:
                changed.append((i, now))
        after = After(made, tuple(changed), len(left.tensors), len(left.numbers))
        if torch.compiler.is_exporting() or self.after is None:
            self.after = after
        carriers = [_carrier(n, tensors[0]) for n in left.numbers]
        return (*left.tensors, *carriers, *(tensors[i] for i in self.written))

    def put(self, given: Given, results: Sequence[Tensor]) -> Any:
        """What the call gives, of the results of a `Flat`; objects become what they became."""
        after = self.after
        assert after is not None
        count, ends = after.count, after.count + after.numbers
        with torch.no_grad():
            for i, new in zip(self.written, results[ends:], strict=True):
                given.tensors[i].copy_(new)
        numbers = [x.shape[0] for x in results[count:ends]]
        build = Built(given.tensors, given.homes)
        build.having(tensor=results[:count], number=numbers, other=given.others)
        made = build.of(after.result)
        for number, content in after.changed:
            build.fill(given.homes[number], *content)
        return made


def _carrier(number: Any, beside: Tensor) -> Tensor:
    """A number as the length of a tensor without elements."""
    return torch.empty((number, 0), device=beside.device)


class Flat(nn.Module):
    """A module whose forward takes the tensors of a call, and gives those that it leaves behind."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.call = model, call
        self.training = model.training

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, tensors)


def check_plain(arguments: Any) -> None:
    """An object that holds tensors is state, for which emitted files have no words."""
    for leaf in pytree.tree_leaves(arguments, is_leaf=_is_object):
        if _is_object(leaf) and Given(leaf).tensors:
            raise UnsupportedError(
                f"An argument is a {type(leaf).__name__} that holds tensors, which no emitted file "
                "can be given; optimize the live module, or give it the tensors themselves."
            )


def _is_object(value: Any) -> bool:
    if isinstance(value, Tensor | dict | list | collections.deque):
        return False
    return opens(value) and not dataclasses.is_dataclass(value)
