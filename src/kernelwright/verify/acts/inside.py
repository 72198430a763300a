"""What the kernels of an emitted file give, one after the other, with every value in between.

In: a ModelNew that kernelwright has emitted, and inputs. Out: the steps of the call in their order,
each with the names of the values that it was the first to touch, and the values by name. The one
idea: an emitted `fused` starts kernels by one function and calls torch for the rest, so both can be
listened to. (For a GPU `fused(run, ...)` only says what is to be done, and is given somebody who
does it at once, with memory of its own for every value.)
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, forward

FUSION, LAUNCH, EMPTY = "_KW_FUSION", "_kw_launch", "_kw_empty"
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
        inputs = call[0] if direct else call[1]
        tensors = (*inputs, *memo.state)
        if direct:
            watched.append(Listening(fusion))
            return watched[-1].run(tensors)
        at_once = AtOnce(fusion, tensors[0].device)
        watched.append(at_once)
        return fusion.fused(at_once, *tensors)

    direct = not hasattr(fusion, "again")
    own = dict(vars(fusion))
    vars(fusion).update({"run": run} | ({} if direct else {"again": lambda *arguments: None}))
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
        self.own = {name: names[name] for name in (LAUNCH, EMPTY) if name in names}
        names |= {LAUNCH: self.launch, EMPTY: self.empty}
        try:
            with self:
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

    def launch(self, name: str, operands: list[Tensor], *sizes: int) -> None:
        self.busy = True
        self.own[LAUNCH](name, operands, *sizes)
        self.busy = False
        self.steps.note(name, operands)

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        self.busy = True
        made: Tensor = self.own[EMPTY](shape, dtype)
        made = made.fill_(torch.nan) if dtype.is_floating_point else made.zero_()
        self.busy = False
        return made

    def told(self) -> Named:
        return self.steps.told()


class AtOnce:
    """What `fused` is given: it does what it is told, and keeps all values."""

    def __init__(self, fusion: Any, device: torch.device) -> None:
        self.fusion, self.device = fusion, device
        self.frozen: frozenset[str] = frozenset()
        self.steps = Steps(fusion.fused)

    # ---- what fused() says -------------------------------------------------------------------

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        return made.fill_(torch.nan) if dtype.is_floating_point else made.zero_()

    def launch(self, name: str, operands: list[Tensor], *numbers: int) -> None:
        self.fusion.kernels.launch(f"launch_{name}", self.device, operands, *numbers)
        self.steps.note(name, operands)

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        made = function(*given)
        self.steps.note(TORCH, [made])
        return made

    def contract(self, function: Callable[..., Any], *given: Any) -> Any:
        with self.fusion.precision():
            return self.call(function, *given)

    def kept(self, target: str, weight: Any, halves: Any, scales: Any) -> tuple[Any, Any, bool]:
        return self.empty(*halves), self.empty(*scales), False

    def told(self) -> Named:
        return self.steps.told()
