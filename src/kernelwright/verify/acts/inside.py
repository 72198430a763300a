"""What the kernels of an emitted file give, one after the other, with every value in between.

In: a ModelNew that kernelwright has emitted, and inputs. Out: the steps of the call in their order,
each with the names of the values that it was the first to touch, and the values by name. The one
idea: an emitted `fused(run, ...)` only says what is to be done, so it can be given somebody who
does it at once, with memory of its own for every value.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, forward

FUSION = "_KW_FUSION"
MOST_BYTES = 1 << 30  # of all values together
TORCH = "torch"


def steps(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """One call under no_grad; no steps where it ran the original forward."""
    fusion = getattr(sys.modules[type(module).__module__], FUSION)
    watched: list[AtOnce] = []
    with _replaced(fusion, watched), torch.no_grad():
        forward(module, inputs)
    return watched[-1].told() if watched else Named({"steps": [], "values": {}})


@contextmanager
def _replaced(fusion: Any, watched: list[AtOnce]) -> Iterator[None]:
    """While this lasts, calls that the kernels take are run step by step."""

    def run(memo: Any, kind: Any, inputs: Any, constants: Any = ()) -> Any:
        tensors = (*inputs, *memo.state)
        watched.append(AtOnce(fusion, tensors[0].device))
        return fusion.fused(watched[-1], *tensors)

    own = dict(vars(fusion))
    vars(fusion).update(again=lambda *arguments: None, run=run)
    try:
        yield
    finally:
        del fusion.again, fusion.run
        vars(fusion).update({name: own[name] for name in ("again", "run") if name in own})


class AtOnce:
    """What `fused` is given: it does what it is told, and keeps all values."""

    def __init__(self, fusion: Any, device: torch.device) -> None:
        self.fusion, self.device = fusion, device
        self.frozen: frozenset[str] = frozenset()
        self.done: list[tuple[str, list[Tensor]]] = []
        self.frame: types.FrameType | None = None

    # ---- what fused() says -------------------------------------------------------------------

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        return made.fill_(torch.nan) if dtype.is_floating_point else made.zero_()

    def launch(self, name: str, operands: list[Tensor], *numbers: int) -> None:
        self.fusion.kernels.launch(f"launch_{name}", self.device, operands, *numbers)
        self._note(name, operands)

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        made = function(*given)
        self._note(TORCH, [made])
        return made

    def contract(self, function: Callable[..., Any], *given: Any) -> Any:
        with self.fusion.precision():
            return self.call(function, *given)

    def kept(self, target: str, weight: Any, halves: Any, scales: Any) -> tuple[Any, Any, bool]:
        return self.empty(*halves), self.empty(*scales), False

    # ---- what is told of it ------------------------------------------------------------------

    def _note(self, name: str, tensors: list[Any]) -> None:
        self.done.append((name, [x for x in tensors if isinstance(x, Tensor)]))
        frame: types.FrameType | None = sys._getframe(2)
        while self.frame is None and frame is not None:
            if frame.f_code is self.fusion.fused.__code__:
                self.frame = frame
            frame = frame.f_back

    def told(self) -> Named:
        """Values go by the names that `fused` has for them; its arguments are not told."""
        assert self.frame is not None
        code, local = self.frame.f_code, self.frame.f_locals
        given = code.co_varnames[: code.co_argcount]
        named = {k: v for k, v in local.items() if isinstance(v, Tensor) and k not in given}
        homes = {v.untyped_storage().data_ptr(): k for k, v in named.items()}
        arguments = [x for k, x in local.items() if isinstance(x, Tensor) and k in given]
        seen = {x.untyped_storage().data_ptr() for x in arguments}
        found: list[list[Any]] = []
        for step, tensors in self.done:
            places = dict.fromkeys(x.untyped_storage().data_ptr() for x in tensors)
            found.append([step, [homes[p] for p in places if p in homes and p not in seen]])
            seen |= places.keys()
        size = sum(x.numel() * x.element_size() for x in named.values())
        return Named({"steps": found, "values": named if size <= MOST_BYTES else {}})
