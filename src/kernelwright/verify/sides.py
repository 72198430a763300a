"""Original, candidate and float64 oracle, and how any of them is run.

In: an act and inputs. Out: results. verify's Subject runs them in processes of their own; bench,
which has timed live modules in this process, runs these here (Local).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from kernelwright.verify.inputs import Inputs
from kernelwright.verify.seat import CANDIDATE, ORACLE, ORIGINAL, Seat
from kernelwright.verify.side import Raised


@dataclass(frozen=True)
class Act:
    """What to do with a module: the name of one of ACTS, and its parameters."""

    name: str = "once"
    parameters: dict[str, Any] = field(default_factory=dict)


ONCE = Act()


class Sides(Protocol):
    """`seconds` is what eager takes on its own inputs, `case_seconds` on those of a case.

    `drew` tells whether the last run of the original drew random numbers.
    """

    @property
    def seconds(self) -> float: ...

    @property
    def drew(self) -> bool: ...

    @property
    def case_seconds(self) -> float: ...

    @property
    def may_round(self) -> bool: ...

    def candidate(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any: ...

    def original(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any: ...

    def oracle(
        self, inputs: Inputs, act: Act = ONCE, draw: int = 0, replay: bool = False
    ) -> Any: ...

    def rounded(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, number: int = 0) -> Any: ...

    def shaken(self, number: int) -> AbstractContextManager[None]:
        """Original and oracle with weights that differ slightly, by another number otherwise."""
        ...


class Local:
    """Live modules, in this process."""

    def __init__(self, original: nn.Module, candidate: nn.Module, device: torch.device) -> None:
        self.seconds = 0.0
        self.drew = False
        self.seats = {ORIGINAL: Seat(), CANDIDATE: Seat()}
        for (role, seat), module in zip(self.seats.items(), (original, candidate), strict=True):
            seat.device = device
            seat.seat(role, module)
        self.seats[ORACLE] = self.seats[ORIGINAL]

    @property
    def case_seconds(self) -> float:
        return self.seconds

    @property
    def may_round(self) -> bool:
        return False

    def candidate(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        return self._run(CANDIDATE, inputs, act, draw)

    def original(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        return self._run(ORIGINAL, inputs, act, draw)

    def oracle(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, replay: bool = False) -> Any:
        return self._run(ORACLE, inputs, act, draw, replay)

    def rounded(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, number: int = 0) -> Any:
        return self.original(inputs, act, draw)

    def shaken(self, number: int) -> AbstractContextManager[None]:
        return nullcontext()  # the module is the user's

    def _run(self, role: str, inputs: Inputs, act: Act, draw: int, replay: bool = False) -> Any:
        request = {
            "do": "run",
            "role": role,
            "act": act.name,
            "parameters": act.parameters,
            "inputs": inputs,
            "noise": draw,
            "replay": replay,
            "volatile": self.seats[ORIGINAL].volatile,
        }
        answer = self.seats[role].answer(request)
        if "raised" in answer or "fatal" in answer:
            kind = str(answer.get("raised", answer.get("fatal")))
            raise Raised(kind, answer["message"], answer.get("unreplayable") is True)
        if role == ORIGINAL:
            self.drew = answer["drew"]
        return answer["value"]
