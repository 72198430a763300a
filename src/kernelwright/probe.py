"""A module is called on fake tensors, to see what a call does besides computing values.

In: a Problem. Out: a Sighting: which tensors the gradient of each output flows to, how outputs lie
in memory and whether that follows the inputs, and which Python attributes the call changes. Nothing
is computed and the user's module is not touched: the call runs on a copy whose tensors are fake.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernelwright import recurrences, structures
from kernelwright.borrowed import unfused
from kernelwright.effects import undone, watched
from kernelwright.errors import PACKAGE
from kernelwright.fakes import layouts
from kernelwright.graph import is_differentiable
from kernelwright.histories import histories
from kernelwright.problem import Problem
from kernelwright.runtime.baked import attributes, described

TORCH = Path(torch.__file__).parent
Change = Callable[[Any], Any]
Places = tuple[int, ...]
Recorded = frozenset[int] | None  # what asks for gradients; None: nothing is recorded
Strides = tuple[tuple[int, ...] | None, ...]
Memory = tuple[int | None, ...]
Placed = tuple[Strides, ...]
Lies = tuple[Strides, Memory, Placed]
Way = tuple[list[Any], list[Any], Lies]
Orders = tuple[tuple[int, ...] | None, ...]  # axes by their strides; None: as ever
MOST_AXES = 5  # of an image, or what stands for one


@dataclass(frozen=True)
class Sighting:
    """`reaches` and `strides` have an entry for each leaf of the outputs.

    An entry of `reaches` holds the positions of input leaves and the module's own tensors (by id);
    none are known of a forward that cannot be differentiated. One of `strides` is None where the
    leaf is not a tensor; one of `memory` says whose memory the leaf lies in, as `reaches` does, or
    is negative for memory that the call made. `follows` holds the input leaves whose order in
    memory decides how outputs lie, or that the forward refuses in another order; `copies` those
    that it hands on only if they are contiguous, or takes only then, and `repeats` those whose
    samples must not be one and the same. `given` says of each leaf whether it is the very tensor of
    an input or of the module. `effect` says what every call does besides computing, as changing an
    attribute, and `warms` that only the first call changes any. `asks` says that the forward wants
    to know whether it is recorded, and may do something else then; `asks_mode` that it wants to
    know whether anything is, which a flat problem tells. `recorded` holds what asks for
    gradients where all this is so, None if that does not matter; `otherwise` gives the orders that
    outputs lie in elsewhere, as long as inputs lie row by row, if that is all that is other there.
    `history` is what autograd records of each leaf where all that can ask for gradients does.
    """

    reaches: tuple[frozenset[int], ...] | None
    strides: Strides
    follows: frozenset[int]
    copies: frozenset[int]
    repeats: frozenset[int]
    given: tuple[bool, ...]
    memory: Memory
    effect: str | None
    warms: bool
    asks: bool
    asks_mode: bool
    recorded: tuple[frozenset[int], ...] | None
    otherwise: Orders | None
    history: tuple[str, ...] | None


def probe(problem: Problem) -> Sighting | None:
    """What a call does, or None where the forward cannot run on fake tensors.

    Numbers read by .item() are symbols, if the forward does not go on without them; gradients are
    left out, if it cannot be differentiated.
    """
    for gradients, numbers in product((True, False), (None, ShapeEnv())):
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")  # and user code without values may fail in any way
            mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=numbers)
            with undone() as changed:
                return _probe(problem, mode, gradients, changed)
    return None


def lies(problem: Problem) -> Lies | None:
    """How each output lies, and in whose memory, as `_Stage.lie` has it; None as for `probe`."""
    for numbers in (None, ShapeEnv()):
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            stage = _Stage(problem, FakeTensorMode(allow_non_fake_inputs=True, shape_env=numbers))
            return stage.lie(*stage.call())
    return None


def writes_into(problem: Problem) -> frozenset[int]:
    """The leaves of the inputs that a call writes into; none where that cannot be seen."""
    for numbers in (None, ShapeEnv()):
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            stage = _Stage(problem, FakeTensorMode(allow_non_fake_inputs=True, shape_env=numbers))
            given, _ = stage.call()
            return frozenset(i for i, x in enumerate(given) if _written(x))
    return frozenset()


def _written(x: Any) -> bool:
    return isinstance(x, Tensor) and x._version > 0


class _Stage:
    """A copy of a module whose tensors are fake, to be called on fake inputs."""

    def __init__(self, problem: Problem, mode: FakeTensorMode) -> None:
        self.mode, self.arguments = mode, (problem.inputs, dict(problem.kwargs))
        self.flat = problem.flat
        self.asked = _Asked()
        self.real = {id(t): t for t in tensors_of(problem.module)}
        self.stand_ins: dict[int, Any] = {i: _fake(mode, t) for i, t in self.real.items()}
        self.sets_mode = False
        self.everything = self.asking(everything=True)
        with unfused(problem.module):
            self.module = copy.deepcopy(problem.module, dict(self.stand_ins))

    def asking(self, everything: bool) -> frozenset[int]:
        """The inputs, and own tensors by id, that can ask for gradients; or those that do here."""
        own = {t: fake for t, fake in self.stand_ins.items() if isinstance(fake, Tensor)}
        inputs = dict(enumerate(pytree.tree_leaves(self.arguments)))
        can = {t for t, fake in own.items() if fake.requires_grad}
        tensors = {i: x for i, x in inputs.items() if isinstance(x, Tensor)}
        can |= {i for i, x in tensors.items() if is_differentiable(x.dtype)}
        return frozenset(t for t in can if everything or (self.real | inputs)[t].requires_grad)

    def call(
        self,
        places: Places = (),
        change: Change = lambda x: x,
        recorded: Recorded = None,
        merged: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """The leaves of the inputs, and of the outputs."""
        whole, asking = recurrences.whole(self.module), recorded or frozenset()
        for i in self.everything & self.stand_ins.keys():
            self.stand_ins[i].requires_grad_(recorded is None or i in asking)
        with self.mode, layouts() as placed, torch.set_grad_enabled(recorded is not None), whole:
            leaves, spec = pytree.tree_flatten(self.arguments)
            dense = [x.contiguous() if isinstance(x, Tensor) else x for x in leaves]
            moved = [change(x) if i in places else x for i, x in enumerate(dense)]
            given = [
                _input(self.mode, x, i in asking) if isinstance(x, Tensor) else x
                for i, x in enumerate(moved)
            ]
            if merged:
                kinds = {(x.shape, x.dtype): x for x in given if isinstance(x, Tensor)}
                given = [kinds[x.shape, x.dtype] if isinstance(x, Tensor) else x for x in given]
            args, kwargs = pytree.tree_unflatten(given, spec)
            with self.asked.heard():
                outputs = self.module.forward(*args, **kwargs)
            self.sets_mode |= torch.is_grad_enabled() is not (recorded is not None)
            structures.register(outputs)
            self.placed = tuple(tuple(map(_strides, operands)) for operands in placed)
            return given, pytree.tree_leaves(outputs)

    def way(self, recorded: Recorded) -> Way:
        """The leaves of a call, and how its results lie."""
        given, outputs = self.call(recorded=recorded)
        return given, outputs, self.lie(given, outputs)

    def attempt(self, recorded: Recorded) -> Way | None:
        """The same; None where the kernels that torch has for it do not run on fake tensors."""
        with contextlib.suppress(Exception):
            return self.way(recorded) if self.takes_one_for_several(recorded) else None
        return None

    def takes_one_for_several(self, recorded: Recorded) -> bool:
        """Whether one tensor in the place of all inputs like it gives results that lie alike.

        A layer of torch.nn asks whether its query is its key.
        """
        plain = [x for x in pytree.tree_leaves(self.arguments) if isinstance(x, Tensor)]
        if self.flat or len({(x.shape, x.dtype) for x in plain}) == len(plain):
            return True
        usual, merged = (self.call(recorded=recorded, merged=m) for m in (False, True))
        strides = [tuple(map(_strides, outputs)) for _, outputs in (usual, merged)]
        return strides[0] == strides[1]

    def lie(self, given: list[Any], outputs: list[Any]) -> Lies:
        """How results lie, in whose memory, and what calls that go by places were given."""
        fakes = self.stand_ins.items()
        held = {_storage(fake): real for real, fake in fakes if isinstance(fake, Tensor)}
        held |= {_storage(x): i for i, x in enumerate(given) if isinstance(x, Tensor)}
        memory = tuple(_memory(o, held) for o in outputs)
        return tuple(map(_strides, outputs)), memory, self.placed


class _Asked(TorchFunctionMode):
    """Whether the user's code asks if a call is recorded."""

    QUESTIONS = tuple(
        getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")
    )

    def __init__(self) -> None:
        super().__init__()
        self.any = self.mode = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self.QUESTIONS:
            self.any |= self.is_users(sys._getframe(1))
        return function(*args, **kwargs or {})

    @staticmethod
    def is_users(frame: FrameType) -> bool:
        return {TORCH, PACKAGE}.isdisjoint(Path(frame.f_code.co_filename).parents)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        enabled = torch.is_grad_enabled

        def is_grad_enabled() -> bool:
            self.mode |= self.is_users(sys._getframe(1))
            return enabled()

        torch.is_grad_enabled = is_grad_enabled
        try:
            with self:
                yield
        finally:
            torch.is_grad_enabled = enabled


def _probe(
    problem: Problem, mode: FakeTensorMode, gradients: bool, changed: Callable[[], str | None]
) -> Sighting:
    stage = _Stage(problem, mode)
    own = {id(fake): real for real, fake in stage.stand_ins.items()}
    before = _plain_state(stage.module)
    everything = stage.everything if gradients else None
    example = stage.asking(everything=False)
    first = given, outputs, _ = stage.way(everything)
    between, setting = _plain_state(stage.module), changed()
    reaches = tuple(_reached(o, {**own, **_positions(given)}) for o in outputs)
    history = histories(outputs) if gradients else None
    ways: dict[Recorded, Way | None] = {everything: first}
    with watched(problem.module) as watch:  # what only a first call does, others do not
        ways[None] = stage.attempt(None)
    if not _alike(ways.values()) and example not in ways:
        ways[example] = stage.attempt(example)
    usual, found = next((w, f) for w in (example, None, everything) if (f := ways.get(w)))
    given, outputs, (strides, memory, placed) = found
    alike = [usual, *(w for w, f in ways.items() if w != usual and f and f[2] == found[2])]

    def differs(places: Places, change: Change, way: Recorded = usual) -> bool:
        try:
            moved, there, drawn = stage.lie(*stage.call(places, change, way))
        except Exception:  # as a view() of it does: the original has to say so
            return True
        if change in (_with_gaps, _repeated):  # a view of the input has them too
            pairs = zip(moved, strides, memory, strict=True)
            moved = tuple(s if home is None or home >= 0 else m for m, s, home in pairs)
        return there != memory or moved != strides or drawn != placed

    others = [f for f in ways.values() if f is None or f[2] != found[2]]
    otherwise = _otherwise(found, others)
    follows = _follows(given, differs, alike, problem.flat)
    if otherwise is not None:
        follows = {i for i, x in enumerate(given) if isinstance(x, Tensor)}
    copies = _copies(given, follows, differs)
    repeats = _repeats(given, copies, differs)
    very = {id(x) for x in (*given, *stage.stand_ins.values()) if isinstance(x, Tensor)}
    after = _plain_state(stage.module)
    effect = (
        watch.effect
        or setting
        or ("sets whether gradients are recorded" if stage.sets_mode else None)
    )
    changes = next((name for name in after if between.get(name) != after[name]), None)
    effect = f"changes {changes}" if changes else effect
    warms = changes is None and before != between
    known = reaches if gradients else None
    return Sighting(
        known,
        strides,
        frozenset(follows),
        frozenset(copies),
        frozenset(repeats),
        tuple(id(o) in very for o in outputs),
        memory,
        effect,
        warms,
        stage.asked.any or (stage.asked.mode and not problem.flat),
        stage.asked.mode,
        None if _alike(ways.values()) else tuple({way or frozenset(): None for way in alike}),
        otherwise,
        history,
    )


def _otherwise(usual: Way, others: list[Way | None]) -> Orders | None:
    """The orders in which results lie in other ways, if they are dense and nobody else's memory."""
    _, outputs, (strides, memory, placed) = usual
    lies = {way and way[2] for way in others}
    if len(lies) != 1 or (other := lies.pop()) is None or other[1:] != (memory, placed):
        return None
    orders: list[tuple[int, ...] | None] = []
    for output, before, after, home in zip(outputs, strides, other[0], memory, strict=True):
        if before == after or after is None:
            orders.append(None)
            continue
        order = tuple(sorted(range(len(after)), key=lambda d: -after[d]))
        dense = torch.empty_permuted(output.shape, order, device="meta").stride()
        pairs = zip(output.shape, dense, after, strict=True)
        if (
            home is None
            or home >= 0
            or memory.count(home) > 1
            or any(size > 1 and a != b for size, a, b in pairs)
        ):
            return None
        orders.append(order)
    return tuple(orders)


def _alike(ways: Iterable[Way | None]) -> bool:
    """Whether results lie the same in all of them."""
    return len({found and found[2] for found in ways}) == 1


def _follows(
    given: list[Any],
    differs: Callable[[Places, Change, Recorded], bool],
    ways: list[Recorded],
    many: bool,
) -> set[int]:
    """The inputs whose order in memory matters: one by one, then the others all together.

    Where two operands lie differently, an operator may take the order of neither. Of `many`, each
    is looked at where the order of all together matters, or there are images among them.
    """
    follows: set[int] = set()
    for change in (_reversed, *map(_swapped, range(MOST_AXES - 1)), _channels_last):
        places = {i for i, x in enumerate(given) if isinstance(x, Tensor) and change(x) is not x}
        first, *more = ways
        if many and change is not _channels_last and not differs(tuple(places), change, first):
            continue
        follows |= {i for i in places - follows if differs((i,), change, first)}
        for way in [first] * (len(places - follows) > 1) + more:
            others = tuple(places - follows)
            if others and differs(others, change, way):
                follows |= {*others}
    return follows


def _copies(
    given: list[Any], follows: set[int], differs: Callable[[Places, Change], bool]
) -> set[int]:
    """The inputs whose gaps matter: contiguous() of one without gaps is the very input.

    Then their order does too, if they have one: more than one axis of several places.
    """
    places = tuple(
        i
        for i, x in enumerate(given)
        if isinstance(x, Tensor) and (i in follows or sum(n > 1 for n in x.shape) == 1)
    )
    if not places or not differs(places, _with_gaps):
        return set()
    return {i for i in places if differs((i,), _with_gaps)} or {*places}


def _repeats(
    given: list[Any], copies: set[int], differs: Callable[[Places, Change], bool]
) -> set[int]:
    """The inputs that matter if their samples are all one: a reshape may then be no copy."""
    places = tuple(
        i
        for i, x in enumerate(given)
        if isinstance(x, Tensor) and i not in copies and _repeated(x) is not x
    )
    if not places or not differs(places, _repeated):
        return set()
    return {i for i in places if differs((i,), _repeated)} or {*places}


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Every tensor that hangs on a module: parameters, buffers, and attributes of any nesting."""
    seen: set[int] = set()
    stack: list[Any] = [module]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            stack += vars(value).values()
        elif isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list | tuple):
            stack += value


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    fake = mode.from_tensor(tensor.detach(), static_shapes=True)
    flows = is_differentiable(tensor.dtype)
    made = nn.Parameter(fake, flows) if isinstance(tensor, nn.Parameter) else fake
    if flows and (isinstance(tensor, nn.Parameter) or tensor.is_leaf):
        made.requires_grad_(isinstance(tensor, nn.Parameter) or tensor.requires_grad)
    return made


def _input(mode: FakeTensorMode, tensor: Tensor, recorded: bool) -> Tensor:
    return mode.from_tensor(tensor.detach(), static_shapes=True).requires_grad_(recorded)


def _positions(given: list[Any]) -> dict[int, int]:
    """Input leaves are known by their position."""
    return {id(x): i for i, x in enumerate(given) if isinstance(x, Tensor)}


def _reached(output: Any, sources: dict[int, int]) -> frozenset[int]:
    """The sources whose gradient the output's history leads to."""
    if not isinstance(output, Tensor) or not output.requires_grad:
        return frozenset()
    if output.grad_fn is None:
        return frozenset({sources[id(output)]} if id(output) in sources else ())
    found: set[int] = set()
    seen, stack = {output.grad_fn}, [output.grad_fn]
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in sources:
            found.add(sources[id(variable)])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return frozenset(found)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _memory(output: Any, held: dict[int, int]) -> int | None:
    """Whose memory it is; what is met for the first time gets a number of its own."""
    if not isinstance(output, Tensor) or output.layout is not torch.strided:
        return None
    return held.setdefault(_storage(output), -1 - len(held))


def _strides(value: Any) -> tuple[int, ...] | None:
    return tuple(value.stride()) if isinstance(value, Tensor) else None


def _reversed(x: Tensor) -> Tensor:
    if x.ndim < 2:
        return x
    order = list(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def _with_gaps(x: Tensor) -> Tensor:
    return x.new_empty([n + 1 for n in x.shape])[tuple(map(slice, x.shape))]


def _repeated(x: Tensor) -> Tensor:
    return x[:1].expand_as(x) if x.ndim and x.shape[0] > 1 else x


def _channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.ndim > 3 else x


def _swapped(axis: int) -> Change:
    """Two neighbouring axes lie the other way round; there is one such order of a matrix alone."""

    def swap(x: Tensor) -> Tensor:
        if x.ndim < 3 or x.ndim < axis + 2 or 1 in x.shape[axis : axis + 2]:
            return x
        return x.transpose(axis, axis + 1).contiguous().transpose(axis, axis + 1)

    return swap


def _plain_state(module: nn.Module) -> dict[str, Any]:
    """Every attribute of the tree, by identity where it is a tensor and as text where it is not."""
    found: dict[str, Any] = {}
    for path, m in module.named_modules():
        plain = attributes(m)
        for name, value in vars(m).items():
            if isinstance(value, Tensor):
                found[f"{path}.{name}".lstrip(".")] = _Same(value)
            elif name in plain:
                found[f"{path}.{name}".lstrip(".")] = described(value)
    return found


class _Same:
    """Equal to what holds the very same tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.tensor is self.tensor

    __hash__ = None  # type: ignore[assignment]
