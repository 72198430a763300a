"""Entries of the databases, and the samples that are taken of each.

An Entry is a name, a dtype and, for a module, a mode: text, so that it can be drawn, sent to a
worker and found again. Its Samples are modules with arguments; a few are picked that differ in
structure, always the same ones.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo.checks import seed

from databases.sources import databases

LOOKED_AT = 200  # samples of one entry, of which some are picked
# Of one other dtype than float32 that an operator takes, the first by a hash of its name.
OTHERS = ("complex64", "int64", "bool", "bfloat16", "float16", "int32", "uint8", "float64")
MODES = {"module": ("train", "eval"), "op": ("eval",)}


@dataclass(frozen=True)
class Entry:
    """One row of a database in one dtype and mode."""

    kind: str
    name: str
    dtype: str
    mode: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.dtype} {self.mode}"

    @classmethod
    def parse(cls, text: str) -> Entry:
        return cls(*text.split(" "))


@dataclass(frozen=True)
class Sample:
    """A module with the arguments of a call; `about` says what is special of them."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    about: str


@dataclass(frozen=True)
class Hole:
    """Where a tensor of the call belongs."""

    number: int


class Operator(nn.Module):
    """A function whose arguments are those of the call."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class InPlace(nn.Module):
    """An operator that writes what it computes into a copy of its first argument."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        y = x.clone()
        return self.function(y, *args, **kwargs), y


class Bound(nn.Module):
    """A function of the tensors of a call; everything else it has from the module."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs

    def forward(self, *tensors: Tensor) -> Any:
        args = [filled(x, tensors) for x in self.args]
        kwargs = {name: filled(x, tensors) for name, x in self.kwargs.items()}
        return self.function(*args, **kwargs)


def filled(value: Any, tensors: tuple[Tensor, ...]) -> Any:
    if isinstance(value, Hole):
        return tensors[value.number]
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(filled(x, tensors) for x in value)
    return value


def entries(kind: str, device: str) -> list[Entry]:
    """Of one database: float32 where it is taken, another dtype, and for a module both modes."""
    rows = databases()[0 if kind == "module" else 1]
    return [
        Entry(kind, name_of(row), dtype, mode)
        for row in rows
        for dtype in _dtypes(row, kind, device)
        for mode in MODES[kind]
    ]


def name_of(row: Any) -> str:
    """As torch's tests call it."""
    variant = getattr(row, "variant_test_name", "")
    return f"{row.name}:{variant}".removesuffix(":").replace(" ", "_")


def _dtypes(row: Any, kind: str, device: str) -> list[str]:
    taken = row.dtypes if kind == "module" else row.supported_dtypes(torch.device(device).type)
    names = {str(dtype).removeprefix("torch.") for dtype in taken}
    if kind == "module":
        return [d for d in ("float32", "bfloat16") if d in names or d == "bfloat16"]
    number = zlib.crc32(name_of(row).encode())
    others = [d for d in (*OTHERS[number % 8 :], *OTHERS[: number % 8]) if d in names]
    return [*(["float32"] if "float32" in names else []), *others[:1]]


def samples(entry: Entry, device: str, count: int) -> list[Sample]:
    rows = databases()[0 if entry.kind == "module" else 1]
    row = next(row for row in rows if name_of(row) == entry.name)
    dtype = getattr(torch, entry.dtype)
    seed(zlib.crc32(str(entry).encode()))
    make = _of_module if entry.kind == "module" else _of_operator
    return list(make(row, entry, dtype, device, count))


def _of_module(
    row: Any, entry: Entry, dtype: torch.dtype, device: str, count: int
) -> Iterator[Sample]:
    training = entry.mode == "train"
    found = row.module_inputs_func(
        row, device=device, dtype=dtype, requires_grad=False, training=training
    )
    made = list(itertools.islice(found, LOOKED_AT))
    calls = [
        ((*x.constructor_input.args, *x.forward_input.args), _names(x.constructor_input, x))
        for x in made
    ]
    for i in picked([features(*call) for call in calls], count):
        built, given = made[i].constructor_input, made[i].forward_input
        kwargs = dict(built.kwargs)
        module = row.module_cls(*built.args, **kwargs).to(device=device, dtype=dtype)
        yield Sample(module.train(training), tuple(given.args), dict(given.kwargs), str(i))


def _names(built: Any, made: Any) -> dict[str, Any]:
    return {f"init.{k}": v for k, v in built.kwargs.items()} | dict(made.forward_input.kwargs)


def _of_operator(
    row: Any, entry: Entry, dtype: torch.dtype, device: str, count: int
) -> Iterator[Sample]:
    found = row.sample_inputs(device, dtype, requires_grad=False)
    made = list(itertools.islice(found, LOOKED_AT))
    calls = [((x.input, *x.args), dict(x.kwargs)) for x in made]
    written = row.inplace_variant if entry.dtype == "float32" else None
    if written is not None and calls and isinstance(calls[0][0][0], Tensor):
        yield Sample(InPlace(written).eval(), *calls[0], "0 in place")
    for order, i in enumerate(picked([features(*call) for call in calls], count)):
        args, kwargs = calls[i]
        if order % 2:
            yield Sample(Operator(row.op).eval(), args, kwargs, f"{i} as given")
            continue
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        numbers = itertools.count()
        holes = [Hole(next(numbers)) if isinstance(x, Tensor) else x for x in leaves]
        bound = Bound(row.op, *pytree.tree_unflatten(holes, spec))
        yield Sample(bound.eval(), tuple(tensors), {}, f"{i} bound")


def features(args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[object]:
    """What a call is like: how many axes its tensors have, which arguments there are."""
    found: set[object] = {("count", len(args))}
    for place, value in (*enumerate(args), *kwargs.items()):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                found.add((place, leaf.ndim, leaf.dtype, leaf.numel() == 0))
            elif isinstance(leaf, bool | str | torch.dtype | None):
                found.add((place, leaf))
            else:
                found.add((place, type(leaf)))
    return frozenset(found)


def picked(calls: list[frozenset[object]], count: int) -> list[int]:
    """The first call, then each time the one with the most that none before it had."""
    chosen: list[int] = []
    seen: set[object] = set()
    rest = list(range(len(calls)))
    while rest and len(chosen) < count:
        best = max(rest, key=lambda i: (len(calls[i] - seen), -i)) if chosen else 0
        if chosen and not calls[best] - seen:
            break
        chosen.append(best)
        rest.remove(best)
        seen |= calls[best]
    return chosen


def part(whole: Iterable[Entry], number: int, of: int) -> list[Entry]:
    """Every entry belongs to one of so many parts, by its name."""
    return [e for e in whole if zlib.crc32(str(e).encode()) % of == number % of]
