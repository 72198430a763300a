"""The model under test: original, candidate and float64 oracle side by side, with their inputs.

In: a Maker. Out: a Subject that draws inputs of any batch size, runs any of the three modules
without letting one run leave traces for the next, and keeps their weights the same.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.errors import BuildError, InputError
from kernelwright.problem import describe
from kernelwright.verify import attributes, parameters, saved
from kernelwright.verify.attributes import Attributes
from kernelwright.verify.candidate import build_failure, fallbacks_of, first_difference
from kernelwright.verify.compare import same_bits
from kernelwright.verify.inputs import (
    Call,
    Inputs,
    forward,
    map_floating,
    tensors_in,
    widen,
    with_size,
)
from kernelwright.verify.maker import Arguments, Maker, from_files
from kernelwright.verify.parameters import State
from kernelwright.verify.replay import moved, rng_state

SEED = 0
NOISE_SEED = 1000  # of the generator at the start of a call, plus the number of the draw
SMALL_SECONDS = 0.04  # what one eager run at the reduced batch may take
TRIAL_BATCH = 32
SMALLEST_BATCH = 4


def load_subject(
    model: Path, candidate: Path, device: str, precision: str, training: bool | None = None
) -> Subject:
    """The Subject of two files, or of a saved live module, in a mode (None: as constructed)."""
    if model.suffix == saved.SUFFIX:
        return Subject(saved.from_saved(model, candidate, precision))
    maker = from_files(model, candidate, device, precision, SEED)
    if training is not None:
        maker.original.train(training)
    return Subject(maker)


class Subject:
    """One problem and its candidate, loaded."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.device = maker.device
        self.precision = maker.precision
        self.drew = False
        self.counted: Counter[str] = Counter()
        self._random_by_mode: dict[bool, bool] = {}
        candidate = maker.make_candidate(maker.arguments or Arguments((), {}), SEED)
        self.initial_mismatch = first_difference(maker.original, candidate)
        self._seat(maker.original, candidate)
        self.states: dict[str, State] = {"initial": self.state}
        parameters.write(self.candidate, self.state)
        self.draw_all = functools.lru_cache(maxsize=3)(self._draw_all)
        first = tensors_in(self.draw_all(SEED))[0]
        self.batch = int(first.shape[0]) if first.ndim else 1
        self.resized = self._find_resized()
        self.seconds = self._estimate_seconds()
        self.small = self._affordable_batch()

    def _seat(self, original: nn.Module, candidate: nn.Module) -> None:
        """Take two modules in, with what a run of either starts from."""
        self.original, self.candidate = original, candidate
        self.candidate.train(original.training)
        self.oracle = attributes.widen_attributes(copy.deepcopy(original).double())
        self.state: State = parameters.snapshot(original)
        self.begin: Attributes = attributes.plain(original)
        self.volatile: Attributes = {}

    @contextmanager
    def rebuilt(self, original: nn.Module, candidate: nn.Module) -> Iterator[None]:
        """Two other modules in the place of original and candidate, as they were constructed."""
        kept = dict(vars(self))
        self._seat(original, candidate)
        try:
            yield
        finally:
            vars(self).update(kept)

    # Inputs

    def _draw_all(self, seed: int) -> Inputs:
        torch.manual_seed(seed)
        return self.maker.draw()

    def draw(self, batch: int, seed: int) -> Inputs:
        """Fresh copies of the file's own inputs, cut or resampled to the batch size."""
        leaves, tree = pytree.tree_flatten(self.draw_all(seed))
        torch.manual_seed(seed)
        sized = [
            with_size(x, 0, batch)
            if i in self.resized
            else x.clone()
            if isinstance(x, Tensor)
            else x
            for i, x in enumerate(leaves)
        ]
        drawn: Inputs = pytree.tree_unflatten(sized, tree)
        return drawn

    def _find_resized(self) -> frozenset[int]:
        """Which inputs carry the batch: all of the first one's size, or it alone, or none."""
        leaves = pytree.tree_leaves(self.draw_all(SEED))
        batched = [
            i
            for i, x in enumerate(leaves)
            if isinstance(x, Tensor) and x.ndim and x.shape[0] == self.batch
        ]
        for guess in (batched, batched[:1]):
            self.resized = frozenset(guess)
            if guess and self._runs(min(self.batch, SMALLEST_BATCH)):
                return self.resized
        return frozenset()

    def _runs(self, batch: int) -> bool:
        try:
            self.run(self.original, self.draw(batch, SEED))
        except Exception:
            return False
        return True

    def _estimate_seconds(self) -> float:
        """What eager takes on the file's own inputs, extrapolated from a part of the batch."""
        trial = min(self.batch, TRIAL_BATCH) if self.resized else self.batch
        try:
            self.run(self.original, self.draw(trial, SEED))
            inputs = self.draw(trial, SEED)
            start = time.perf_counter()
            self.run(self.original, inputs)
        except Exception as error:
            given = ", ".join(describe(x) for x in pytree.tree_leaves(self.draw_all(SEED)))
            kind = type(error).__name__
            raise InputError(
                f"Model raised {kind} on its own inputs ({given}): {error}."
            ) from error
        return (time.perf_counter() - start) * self.batch / max(trial, 1)

    def _affordable_batch(self) -> int:
        if not self.resized:
            return self.batch
        affordable = int(self.batch * SMALL_SECONDS / max(self.seconds, 1e-9))
        return min(self.batch, max(SMALLEST_BATCH, affordable))

    # Runs

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
                path = self.maker.candidate_path
                raise BuildError(f"{path} could not be built: {reason}") from error
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

    @property
    def random(self) -> bool:
        """Whether eager draws random numbers, in the mode it is in now."""
        mode = self.original.training
        if mode not in self._random_by_mode:
            self.run(self.original, self.draw(self.small, SEED))
            self._random_by_mode[mode] = self.drew
        return self._random_by_mode[mode]

    # Parameters

    def use(self, name: str) -> None:
        """Set the parameters of all three modules to a named state: `initial` or `random`."""
        if name not in self.states:
            self.states[name] = parameters.randomised(self.original, self.states["initial"], SEED)
        if self.state is not self.states[name]:
            self.set_state(self.states[name])

    def set_state(self, state: State) -> None:
        self.set_reference_state(state)
        parameters.write(self.candidate, state)

    def set_reference_state(self, state: State) -> None:
        """New parameters for original and oracle; the candidate gets them in its own way."""
        self.state = state
        parameters.write(self.original, state)
        parameters.write(self.oracle, state)

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        roots = (self.original, self.candidate, self.oracle)
        before = [(module, module.training) for root in roots for module in root.modules()]
        for root in roots:
            root.train(training)
        try:
            yield
        finally:
            for module, was_training in before:
                module.training = was_training

    @property
    def fallbacks(self) -> dict[str, int] | None:
        """What the candidate says of its own fallbacks so far; None when it does not count them."""
        return None if fallbacks_of(self.candidate) is None else dict(self.counted)


def equal_leaves(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )
