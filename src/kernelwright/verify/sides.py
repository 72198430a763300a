"""Original, candidate and float64 oracle side by side, and how any of them is run.

In: two modules that have the same weights. Out: runs that leave no traces for each other: each
starts from the same buffers, plain attributes and random numbers. verify's Subject is one with
inputs of its own to draw; bench makes one of the modules that it has timed.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.errors import BuildError
from kernelwright.verify import attributes, parameters
from kernelwright.verify.attributes import Attributes
from kernelwright.verify.candidate import build_failure, fallbacks_of
from kernelwright.verify.inputs import Call, Inputs, forward, map_floating, widen
from kernelwright.verify.parameters import State
from kernelwright.verify.replay import moved, rng_state

NOISE_SEED = 1000  # of the generator at the start of a call, plus the number of the draw


class Sides:
    """The three modules; `seconds` is what eager takes on the inputs that it is judged on."""

    def __init__(
        self, original: nn.Module, candidate: nn.Module, device: torch.device, name: str
    ) -> None:
        self.device = device
        self.name = name
        self.seconds = 0.0
        self.drew = False
        self.counted: Counter[str] = Counter()
        self.seat(original, candidate)

    def seat(self, original: nn.Module, candidate: nn.Module) -> None:
        """Take two modules in, with what a run of either starts from."""
        self.original, self.candidate = original, candidate
        self.oracle = attributes.widen_attributes(copy.deepcopy(original).double())
        self.state: State = parameters.snapshot(original)
        self.begin: Attributes = attributes.plain(original)
        self.volatile: Attributes = {}

    @property
    def case_seconds(self) -> float:
        """What one eager run of a case takes."""
        return self.seconds

    def run(self, module: nn.Module, inputs: Inputs, call: Call = forward, draw: int = 0) -> Any:
        """One call that has finished when it returns.

        It starts from the current buffers, from the attributes that the original was constructed
        with, and from the same generator for the same `draw`; `drew` tells whether it used that.
        """
        parameters.write_buffers(module, self.state)
        self._rewind(module)
        torch.manual_seed(NOISE_SEED + draw)
        before = rng_state(self.device)
        with torch.no_grad():
            outputs = call(module, inputs)
        self.finish()
        self.drew = moved(before, self.device)
        if module is self.original:
            self._note_volatile()
        return outputs

    def _note_volatile(self) -> None:
        """Attributes that forward changes are set back before every run from now on."""
        now = attributes.plain(self.original)
        for name in attributes.changed(self.begin, now):
            self.volatile[name] = self.begin.get(name, attributes.ABSENT)

    def _rewind(self, module: nn.Module) -> None:
        if self.volatile:
            wide = module is self.oracle
            start = map_floating(Tensor.double, self.volatile) if wide else self.volatile
            attributes.assign(module, start)

    def run_candidate(self, inputs: Inputs, call: Call = forward, draw: int = 0) -> Any:
        before = fallbacks_of(self.candidate) or Counter()
        try:
            return self.run(self.candidate, inputs, call, draw)
        except Exception as error:
            if (reason := build_failure(error)) is not None:
                raise BuildError(f"{self.name} could not be built: {reason}") from error
            raise
        finally:
            self.counted += (fallbacks_of(self.candidate) or Counter()) - before

    def run_oracle(self, inputs: Inputs, call: Call = forward, draw: int = 0) -> Any:
        """The original in float64; tensors made inside of forward are float64 too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self.run(self.oracle, widen(inputs), call, draw)
        finally:
            torch.set_default_dtype(before)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
