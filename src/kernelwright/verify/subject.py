"""The model under test: original, candidate and float64 oracle side by side, with their inputs.

In: a Maker. Out: a Subject that draws inputs of any batch size and keeps the weights of the three
modules the same; how one of them is run is in sides.py.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.errors import InputError
from kernelwright.problem import describe
from kernelwright.verify import parameters, saved
from kernelwright.verify.candidate import fallbacks_of, first_difference
from kernelwright.verify.compare import same_bits
from kernelwright.verify.inputs import Inputs, tensors_in, with_size
from kernelwright.verify.maker import Arguments, Maker, from_files
from kernelwright.verify.parameters import State
from kernelwright.verify.sides import Sides

SEED = 0
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


class Subject(Sides):
    """One problem and its candidate, loaded."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.precision = maker.precision
        self._random_by_mode: dict[bool, bool] = {}
        candidate = maker.make_candidate(maker.arguments or Arguments((), {}), SEED)
        self.initial_mismatch = first_difference(maker.original, candidate)
        candidate.train(maker.original.training)
        super().__init__(maker.original, candidate, maker.device, str(maker.candidate_path))
        self.states: dict[str, State] = {"initial": self.state}
        parameters.write(self.candidate, self.state)
        self.draw_all = functools.lru_cache(maxsize=3)(self._draw_all)
        first = tensors_in(self.draw_all(SEED))[0]
        self.batch = int(first.shape[0]) if first.ndim else 1
        self.resized = self._find_resized()
        self.seconds = self._estimate_seconds()
        self.small = self._affordable_batch()

    @contextmanager
    def rebuilt(self, original: nn.Module, candidate: nn.Module) -> Iterator[None]:
        """Two other modules in the place of original and candidate, as they were constructed."""
        kept = dict(vars(self))
        candidate.train(original.training)
        self.seat(original, candidate)
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

    @property
    def case_seconds(self) -> float:
        """At the reduced batch, which most cases have."""
        return self.seconds * self.small / max(self.batch, 1)

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
