"""The specialisations of a live module: each is made when a call first needs it.

In: a call that the kernels at hand do not cover. Out: its results, by a kind that does: one more
compiled `Flat` (calls.py) over the same module. A kind is looked for by a cheap key: how the
arguments are built, types, mode, autocast. Its own guard has the last word, so that nothing else
has to know what a trace took for granted. Sizes that have changed since an earlier kind are left
free in the next one where the model allows that. Beyond so many kinds, and where none can be made,
the original runs, counted and said once.
"""

from __future__ import annotations

import functools
import threading
import time
import types
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.calls import Call, Flat, Given, Key, autocast_of, without_autocast
from kernelwright.errors import InputError, KernelwrightError, UnsupportedError
from kernelwright.live import Elsewhere, further_of, lead, load_class, shown
from kernelwright.pipeline import compile_problem
from kernelwright.plan.policy import WHERE_IT_PAYS, Policy
from kernelwright.probe import writes_into
from kernelwright.problem import Problem
from kernelwright.runtime.autograd import is_recomputing
from kernelwright.runtime.tensors import is_ordinary, is_traced
from kernelwright.twins import twin

MOST = 16  # kinds of one module
MOST_SIZES = 512  # that are remembered with the kind that took them
_LED: dict[type[nn.Module], type[nn.Module]] = {}


@dataclass(eq=False)
class Kind:
    """A compiled `Flat`: its text, and for which calls it was made.

    `recorded` says whether gradients have to be recorded, None where the forward does not ask.
    """

    source: str
    name: str
    call: Call
    key: Key
    sizes: tuple[Any, ...]
    free: frozenset[tuple[int, int]]
    recorded: bool | None
    steps: int
    kernels: int
    seconds: float

    def __str__(self) -> str:
        _, types, training, autocast = self.key
        shapes = [s for s in self.sizes if isinstance(s, tuple)]
        shown = [
            f"{str(dtype)[6:]}[{', '.join(self._size(i, a, n) for a, n in enumerate(shape))}]"
            for i, ((dtype, *_), shape) in enumerate(zip(types, shapes, strict=True))
        ]
        mode = "train" if training else "eval"
        mode += f", autocast to {str(autocast.dtype)[6:]}" if autocast else ""
        counts = f"{self.steps} steps, {self.kernels} kernels, {self.seconds:.1f} s"
        return f"{mode}, {', '.join(shown)}: {counts}"

    def _size(self, i: int, axis: int, size: int) -> str:
        return "*" if (i, axis) in self.free else str(size)


@dataclass
class Made:
    """What copies of a module share: kinds by their keys, and what could not be made."""

    by_key: dict[Key, list[Kind]] = field(default_factory=dict)
    tried: set[Any] = field(default_factory=set)
    failed: dict[Any, str] = field(default_factory=dict)
    given: tuple[Key, tuple[Any, ...]] | None = None

    @property
    def all(self) -> list[Kind]:
        return [kind for kinds in self.by_key.values() for kind in kinds]


class Kinds:
    """The kinds of one module, which is known to its copies alone by what it has made."""

    def __init__(self, most: int, precision: str, policy: Policy) -> None:
        self.most, self.precision, self.policy = most, precision, policy
        self.made = Made()
        self._fresh()

    def _fresh(self) -> None:
        self.lock = threading.RLock()
        self.bound: dict[int, nn.Module] = {}
        self.known: dict[Any, Kind] = {}
        self.fallbacks: Counter[str] = Counter()
        self.view: nn.Module | None = None

    def __call__(self) -> tuple[Kind, ...]:
        return tuple(self.made.all)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: vars(self)[name] for name in ("most", "precision", "policy")}
        made = Made(dict(self.made.by_key), set(self.made.tried), given=self.made.given)
        return {**kept, "made": made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def __deepcopy__(self, memo: Any) -> Kinds:
        new = Kinds(self.most, self.precision, self.policy)
        new.made = self.made
        return new

    def __str__(self) -> str:
        kinds = self.made.all
        return "\n".join(f"({i}) {kind}" for i, kind in enumerate(kinds, start=1))

    # ---- a call ---------------------------------------------------------------------------------

    def run(self, module: nn.Module, cause: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """What a call gives that is outside of what the module's own kernels cover."""
        if torch.compiler.is_compiling() or "_kernelwright_original" in vars(module):
            return self.original(module, args, kwargs)
        try:
            given = Given((args, kwargs))
            key = _key(given, module)
        except (UnsupportedError, RecursionError) as error:
            return self.fall_back(module, str(error), args, kwargs)
        if key is None or is_recomputing():
            return self.fall_back(module, cause, args, kwargs)
        for i, kind in enumerate(self._candidates(key, given)):
            try:
                return self._by(kind, module, given, key)
            except Elsewhere as other:
                if other.module is not self.bound[id(kind)]:
                    raise
                cause = cause if i else other.cause  # that of the nearest one
        tried = _tried(module, given, key, cause)
        if tried in self.made.tried:  # there is a kind of such calls, which had its reason
            return self.fall_back(module, cause, args, kwargs)
        found = self._another(module, given, key, tried)
        if isinstance(found, Kind):
            try:
                return self._by(found, module, given, key)
            except Elsewhere as other:
                if other.module is not self.bound[id(found)]:
                    raise
                self.made.failed[tried] = cause = other.cause
        return self.fall_back(module, found if isinstance(found, str) else cause, args, kwargs)

    def _candidates(self, key: Key, given: Given) -> list[Kind]:
        """The kind that took such sizes before, then those that may, then those made for others."""
        kinds = self.made.by_key.get(key, [])
        known = self.known.get((key, given.sizes))
        return sorted(kinds, key=lambda k: (k is not known, k.sizes != given.sizes, not k.free))

    def _by(self, kind: Kind, module: nn.Module, given: Given, key: Key) -> Any:
        flat = self.bound.get(id(kind)) or self._bind(kind, module)
        if kind.recorded is not None and kind.recorded is not torch.is_grad_enabled():
            raise Elsewhere(flat, "the forward asks whether gradients are recorded")
        if (why := kind.call.unwritable(given)) is not None:
            raise Elsewhere(flat, why)
        own: Any = type(flat).forward
        with without_autocast(kind.call.autocast):
            results = own.__wrapped__(flat, *kind.call.taken(given))
        if len(self.known) > MOST_SIZES:
            self.known.clear()
        self.known[key, given.sizes] = kind
        return kind.call.put(given, results)

    def _bind(self, kind: Kind, module: nn.Module) -> nn.Module:
        """The kind over this very module."""
        model_class = load_class(kind.source, kind.name)
        flat: Any = model_class.__new__(model_class)
        flat.__dict__.update(vars(Flat(self.viewed(module), kind.call)), _kernelwright=None)
        self.bound[id(kind)] = lead(flat, None)
        return self.bound[id(kind)]

    def viewed(self, module: nn.Module) -> nn.Module:
        """The module as one of the original's class, over the very same attributes."""
        if self.view is None or vars(self.view) is not vars(module):
            found = object.__new__(original_class(module))
            found.__dict__ = vars(module)
            self.view = found
        return self.view

    # ---- what the kinds do not cover ------------------------------------------------------------

    def original(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        return self.viewed(module).forward(*args, **kwargs)

    def fall_back(self, module: nn.Module, cause: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """The original, counted and said once."""
        memo = vars(module).get("_kernelwright")
        if memo is not None:
            memo.count(cause)
        else:
            if cause not in self.fallbacks:
                warnings.warn(f"ModelNew runs the original forward: {cause}.", stacklevel=4)
            self.fallbacks[cause] += 1
        return self.original(module, args, kwargs)

    # ---- one more -------------------------------------------------------------------------------

    def _another(self, module: nn.Module, given: Given, key: Key, tried: Any) -> Kind | str:
        """A kind for this call, or why there is none."""
        if tried in self.made.failed:
            return self.made.failed[tried]
        if not all(is_ordinary(x) for x in given.tensors) or is_traced(given.tensors):
            return "the call is traced, or has tensors of other kinds"
        if len(self.made.all) >= self.most:
            return f"there are {self.most} kinds of this model, which is as many as may be made"
        if not self.lock.acquire(blocking=False):
            return "another thread is compiling the kind that this call needs"
        try:
            if getattr(self, "building", False):
                return "the kind that this call needs is being compiled"
            self.building = True
            kind = self._make(module, given, key)
        except Exception as error:  # whatever goes wrong here must not stop the user's program
            said = str(error) if isinstance(error, KernelwrightError) else repr(error)
            self.made.failed[tried] = why = f"no kind could be made for this call: {said}"
            return why
        finally:
            self.building = False
            self.lock.release()
        self.made.by_key.setdefault(key, []).append(kind)
        self.made.tried.add(tried)
        return kind

    def _make(self, module: nn.Module, given: Given, key: Key) -> Kind:
        earlier = [kind.sizes for kind in self.made.by_key.get(key, [])]
        earlier += [sizes for of, sizes in [self.made.given or (None, ())] if of == key]
        free, numbers = _differing(given.sizes, earlier)
        ways = [(free, numbers), (frozenset[tuple[int, int]](), ())]
        ways = ways if free or numbers else ways[1:]
        while True:
            way = ways.pop(0)
            try:
                return make(self.viewed(module), given, key, self.precision, self.policy, *way)
            except Exception:
                if not ways:
                    raise


def make(
    model: nn.Module,
    given: Given,
    key: Key,
    precision: str,
    policy: Policy = WHERE_IT_PAYS,
    free: frozenset[tuple[int, int]] = frozenset(),
    numbers: tuple[int, ...] = (),
) -> Kind:
    """Compile one call of a model, with these sizes and numbers free."""
    start = time.perf_counter()
    call = Call(given, autocast_of(given.tensors[0].device.type))
    call.free = numbers
    with without_autocast(call.autocast):
        return _made(Flat(model, call), given, key, precision, policy, free, start)


def _made(
    flat: Flat,
    given: Given,
    key: Key,
    precision: str,
    policy: Policy,
    free: frozenset[tuple[int, int]],
    start: float,
) -> Kind:
    model, call = flat.model, flat.call
    taken = tuple(x.detach().requires_grad_(x.requires_grad) for x in call.taken(given))
    carriers = {(len(given.tensors) + i, 0) for i in range(len(call.free))}
    problem = Problem(
        type(model).__name__,
        flat,
        taken,
        None,
        None,
        precision,  # type: ignore[arg-type]
        bool(torch.backends.cudnn.allow_tf32),
        free=frozenset(free | carriers),
        autocast=call.autocast,
        flat=True,
        recorded=torch.is_grad_enabled(),
    )
    call.written = tuple(sorted(writes_into(problem)))
    compiled = compile_problem(problem, policy=policy)
    if (refused := compiled.captured.contract.refused) is not None:
        raise UnsupportedError(refused)
    load_class(compiled.source, problem.name)
    recorded = problem.recorded if compiled.captured.contract.asks_mode else None
    counts = len(compiled.regions), len(compiled.kernels), time.perf_counter() - start
    return Kind(compiled.source, problem.name, call, key, given.sizes, free, recorded, *counts)


def _key(given: Given, module: nn.Module) -> Key | None:
    """What kinds are told apart by, besides sizes; None for a call without tensors."""
    if not given.tensors:
        return None
    types = tuple((x.dtype, x.ndim, x.device.type) for x in given.tensors)
    return given.key, types, module.training, autocast_of(given.tensors[0].device.type)


def _tried(module: nn.Module, given: Given, key: Key, cause: str) -> Any:
    """All that decides whether it is worth another try to make a kind.

    What has changed in the module is one kind more; changes of the same without end are not.
    """
    modes = tuple(m.training for m in module.modules())
    return key, given.sizes, modes, torch.is_grad_enabled(), cause


def _differing(
    sizes: tuple[Any, ...], earlier: list[tuple[Any, ...]]
) -> tuple[frozenset[tuple[int, int]], tuple[int, ...]]:
    """The axes of tensors, and the numbers, that are not what they were in earlier calls."""
    shapes = [s for s in sizes if isinstance(s, tuple)]
    free = {
        (i, axis)
        for other in earlier
        for i, shape in enumerate(shapes)
        for axis, size in enumerate(shape)
        if other[i][axis] != size
    }
    count = len(shapes)
    numbers = {
        i
        for other in earlier
        for i, (a, b) in enumerate(zip(sizes[count:], other[count:], strict=True))
        if a != b
    }
    return frozenset(free), tuple(sorted(numbers))


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class that the module's drop-in was made from."""
    mro = type(module).__mro__
    emitted = next(i for i, kind in enumerate(mro) if kind.__name__ == "ModelNew")
    return mro[emitted + 1]


# ---- drop-ins ----------------------------------------------------------------------------------


def most_of(kinds: int | str) -> int:
    """How many kinds a caller allows."""
    if kinds == "live":
        return MOST
    if kinds == "given":
        return 0
    if not isinstance(kinds, int) or isinstance(kinds, bool) or kinds < 0:
        raise InputError(
            f'kinds is a number of kinds, "live" for up to {MOST}, or "given" for none but that of '
            f"the example, and not {kinds!r}."
        )
    return kinds


def with_kinds(new: nn.Module, problem: Problem, most: int, policy: Policy | None) -> nn.Module:
    """A drop-in that has kinds made for calls that its own kernels do not cover."""
    if not most:
        return new
    kinds = Kinds(most, problem.precision, policy or WHERE_IT_PAYS)
    given = Given((problem.inputs, dict(problem.kwargs)))
    if (key := _key(given, new)) is not None:
        kinds.made.given = key, given.sizes
    return lead(new, kinds)


def led(problem: Problem, most: int, policy: Policy | None, why: UnsupportedError) -> nn.Module:
    """A drop-in whose first kind is already one of a call: what an emitted file has no words for.

    `why` is told where there can be none either.
    """
    module = problem.module
    new = twin(module, led_class(type(module)))
    vars(new)["_kernelwright"] = None
    kinds = Kinds(most, problem.precision, policy or WHERE_IT_PAYS)
    lead(new, kinds)
    given = Given((problem.inputs, dict(problem.kwargs)))
    if (key := _key(given, new)) is None:
        raise why
    try:
        kind = make(kinds.viewed(new), given, key, kinds.precision, kinds.policy)
    except UnsupportedError as error:
        raise why from error
    kinds.made.by_key[key] = [kind]
    return new


def led_class(original: type[nn.Module]) -> type[nn.Module]:
    """A class whose forward asks the kinds of its instances."""
    if original not in _LED:
        _LED[original] = _led_class(original)
    return _LED[original]


def _led_class(original: type[nn.Module]) -> type[nn.Module]:
    own = original.forward

    @functools.wraps(own)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return own(self, *args, **kwargs)
        return _kinds_of(self).run(self, "there is no kind of this call", args, kwargs)

    fields: dict[str, Any] = {"forward": forward, "__module__": original.__module__}
    fields |= {"__doc__": original.__doc__}
    if not hasattr(original, "fallbacks"):
        fields["fallbacks"] = property(lambda self: _kinds_of(self).fallbacks)
    if original.__repr__ is nn.Module.__repr__:
        fields["__repr__"] = shown
    if not hasattr(original, "save"):
        fields["save"] = _save
    if original.__reduce_ex__ is object.__reduce_ex__ and original.__reduce__ is object.__reduce__:
        fields["__reduce_ex__"] = _reduce
    return types.new_class("ModelNew", (original,), {}, lambda space: space.update(fields))


def _kinds_of(module: nn.Module) -> Any:
    """The kinds of a module; one that was constructed begins with none."""
    found = further_of(module)
    if found is None:
        vars(module).setdefault("_kernelwright", None)
        found = Kinds(MOST, torch.get_float32_matmul_precision(), WHERE_IT_PAYS)
        lead(module, found)
    return found


def _reduce(module: nn.Module, protocol: int) -> Any:
    known = type(module) is led_class(original_class(module))
    if not known:  # a subclass, which pickle finds by its own name
        return object.__reduce_ex__(module, protocol)
    made = original_class(module), further_of(module)
    return rebuild, made, module.__getstate__()  # type: ignore[no-untyped-call]


def rebuild(original: type[nn.Module], kinds: Kinds | None) -> nn.Module:
    """What pickle and deepcopy call: an instance without state, with the kinds of another."""
    model_class = led_class(original)
    new = model_class.__new__(model_class)
    return lead(new, kinds) if kinds is not None else new


def _save(module: nn.Module, path: Any) -> None:
    raise InputError(
        "The calls of this model take or give objects, for which an emitted file has no words; "
        "keep it with torch.save."
    )
