"""What the kernels of an emitted file give, one after the other, with every value in between.

In: a ModelNew that kernelwright has emitted, and inputs. Out: the steps of the call in their order,
each with the names of the values that it was the first to touch, and the values by name. The one
idea: an emitted `fused` starts kernels by one function and calls torch for the rest, so both can be
listened to. On a GPU a run of kernels is one step; of its values those are seen that leave it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, forward

FUSION, EMPTY, STARTS = "_KW_FUSION", "_kw_empty", ("_kw_launch", "_kw_run")
MOST_BYTES = 1 << 30  # of all values together
TORCH = "torch"


def steps(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """One call under no_grad; no steps where it ran the original forward."""
    fusion = getattr(sys.modules[type(module).__module__], FUSION)
    watched: list[Any] = []
    with _replaced(fusion, watched), torch.no_grad():
        forward(module, inputs)
    return watched[-1].told() if watched else Named({"steps": [], "values": {}})


@contextmanager
def _replaced(fusion: Any, watched: list[Any]) -> Iterator[None]:
    """While this lasts, calls that the kernels take are run step by step."""

    def run(memo: Any, *call: Any) -> Any:
        watched.append(Listening(fusion))
        frozen: tuple[dict[str, Any], ...] = ({},) if fusion.freezes else ()
        return watched[-1].run((*frozen, *call[0], *memo.state))

    own = dict(vars(fusion))
    vars(fusion)["run"] = run
    try:
        yield
    finally:
        vars(fusion).clear()
        vars(fusion).update(own)


class Steps:
    """The steps of a call and the values that they touch; `fused` is the function that takes them.

    A value goes by the name that `fused` has for it while a step is taken, or at the end.
    """

    def __init__(self, fused: Callable[..., Any]) -> None:
        self.code = fused.__code__
        self.done: list[tuple[str, list[Tensor]]] = []
        self.frame: types.FrameType | None = None
        self.named: dict[str, Tensor] = {}

    def note(self, name: str, tensors: list[Any]) -> None:
        self.done.append((name, [x for x in tensors if isinstance(x, Tensor)]))
        frame: types.FrameType | None = sys._getframe(2)
        while self.frame is None and frame is not None:
            if frame.f_code is self.code:
                self.frame = frame
            frame = frame.f_back
        self.look()

    def look(self) -> None:
        """Before `fused` forgets a value it is read by some step."""
        local = self.frame.f_locals if self.frame is not None else {}
        self.named |= {k: v for k, v in local.items() if isinstance(v, Tensor)}

    def told(self) -> Named:
        """The arguments of `fused` are not told."""
        self.look()
        given = self.code.co_varnames[: self.code.co_argcount]
        named = {k: v for k, v in self.named.items() if k not in given}
        homes = {v.untyped_storage().data_ptr(): k for k, v in named.items()}
        arguments = [x for k, x in self.named.items() if k in given]
        seen = {x.untyped_storage().data_ptr() for x in arguments}
        found: list[list[Any]] = []
        for step, tensors in self.done:
            places = dict.fromkeys(x.untyped_storage().data_ptr() for x in tensors)
            names = [homes[p] for p in places if p in homes and p not in seen]
            if names or step != TORCH:
                found.append([step, names])
            seen |= places.keys()
        size = sum(x.numel() * x.element_size() for x in named.values())
        return Named({"steps": found, "values": named if size <= MOST_BYTES else {}})


class Listening(TorchFunctionMode):
    """Hears what `fused` asks of torch, and what it launches."""

    def __init__(self, fusion: Any) -> None:
        super().__init__()
        self.fusion, self.busy = fusion, False
        self.steps = Steps(fusion.fused)
        self.own: dict[str, Any] = {}

    def run(self, tensors: tuple[Any, ...]) -> Any:
        names = self.fusion.fused.__globals__
        ours: dict[str, Any] = {EMPTY: self.empty, **{verb: self.starting(verb) for verb in STARTS}}
        self.own = {name: names[name] for name in ours if name in names}
        names |= {name: ours[name] for name in self.own}
        precision = self.fusion.precision
        try:
            with precision.at_work() if precision else nullcontext(), self:
                return self.fusion.fused(*tensors)
        finally:
            names |= self.own

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if not self.busy:
            self.steps.note(TORCH, [made])
        return made

    def starting(self, verb: str) -> Callable[..., None]:
        """The function that starts kernels, and is heard."""

        def start(name: str, *given: Any) -> None:
            with self.unheard():
                self.own[verb](name, *given)
            self.steps.note(name, next(x for x in given if isinstance(x, list)))

        return start

    def empty(self, shape: Any, dtype: torch.dtype, *place: torch.device) -> Tensor:
        with self.unheard():
            made: Tensor = self.own[EMPTY](shape, dtype, *place)
            return made.fill_(torch.nan) if dtype.is_floating_point else made.zero_()

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Inside, what is asked of torch is no step."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def told(self) -> Named:
        return self.steps.told()
