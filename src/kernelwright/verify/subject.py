"""The model under test: original, candidate and float64 oracle side by side, with their inputs.

In: the paths of two files. Out: a Subject that draws inputs of any batch size, runs any of the
three modules without letting one run leave traces for the next, and keeps their weights the same.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.errors import BuildError, InputError
from kernelwright.problem import describe, in_mode, load_problem, load_source
from kernelwright.verify import parameters
from kernelwright.verify.candidate import build_failure, first_difference, load_candidate
from kernelwright.verify.compare import same_bits
from kernelwright.verify.parameters import State

Inputs = tuple[Any, ...]
Call = Callable[[nn.Module, Inputs], Any]

SEED = 0
SMALL_SECONDS = 0.04  # what one eager run at the reduced batch may take
TRIAL_BATCH = 32
SMALLEST_BATCH = 4


def forward(module: nn.Module, inputs: Inputs) -> Any:
    return module(*inputs)


class Subject:
    """One problem and its candidate, loaded."""

    def __init__(
        self,
        model: Path,
        candidate: Path,
        device: str,
        precision: str,
        training: bool | None = None,
    ) -> None:
        problem = in_mode(load_problem(model, device, precision, SEED), training)
        self.device = problem.device
        self.precision = problem.precision
        self.original = problem.module
        self.user = load_source(model)
        self.candidate_path = candidate
        self.candidate = load_candidate(candidate, self.user, SEED).to(self.device)
        self.initial_mismatch = first_difference(self.original, self.candidate)
        self.state: State = parameters.snapshot(self.original)
        self.states: dict[str, State] = {"initial": self.state}
        parameters.write(self.candidate, self.state)
        self.candidate.train(self.original.training)
        self.oracle = copy.deepcopy(self.original).double()
        self.draw_all = functools.lru_cache(maxsize=3)(self._draw_all)
        first = next(x for x in problem.inputs if isinstance(x, Tensor))
        self.batch = int(first.shape[0]) if first.ndim else 1
        self.resized = self._find_resized()
        self.seconds = self._estimate_seconds()
        self.small = self._affordable_batch()

    # Inputs

    def _draw_all(self, seed: int) -> Inputs:
        torch.manual_seed(seed)
        return tuple(
            x.to(self.device) if isinstance(x, Tensor) else x for x in self.user.get_inputs()
        )

    def draw(self, batch: int, seed: int) -> Inputs:
        """Fresh copies of the file's own inputs, cut or resampled to the batch size."""
        leaves, tree = pytree.tree_flatten(self.draw_all(seed))
        torch.manual_seed(seed)
        sized = [
            _resize(x, batch) if i in self.resized else x.clone() if isinstance(x, Tensor) else x
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
            given = ", ".join(describe(x) for x in self.draw_all(SEED))
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

    def run(self, module: nn.Module, inputs: Inputs, call: Call = forward) -> Any:
        """One call that starts from the current buffers and has finished when it returns."""
        parameters.write_buffers(module, self.state)
        with torch.no_grad():
            outputs = call(module, inputs)
        self.finish()
        return outputs

    def run_candidate(self, inputs: Inputs, call: Call = forward) -> Any:
        try:
            return self.run(self.candidate, inputs, call)
        except Exception as error:
            if (reason := build_failure(error)) is not None:
                raise BuildError(f"{self.candidate_path} could not be built: {reason}") from error
            raise

    def run_oracle(self, inputs: Inputs, call: Call = forward) -> Any:
        """The original in float64; tensors made inside of forward are float64 too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return self.run(self.oracle, widen(inputs), call)
        finally:
            torch.set_default_dtype(before)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @functools.cached_property
    def _random_by_mode(self) -> dict[bool, bool]:
        return {}

    @property
    def random(self) -> bool:
        """Whether eager's result depends on the seed of the generator, in the mode it is in now."""
        mode = self.original.training
        if mode not in self._random_by_mode:
            self._random_by_mode[mode] = self._depends_on_seed()
        return self._random_by_mode[mode]

    def _depends_on_seed(self) -> bool:
        def seeded(seed: int) -> list[Any]:
            inputs = self.draw(self.small, SEED)
            torch.manual_seed(seed)
            return pytree.tree_leaves(self.run(self.original, inputs))

        first = seeded(1)
        return not equal_leaves(first, seeded(2)) and equal_leaves(first, seeded(1))

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
        before = self.original.training
        modules = (self.original, self.candidate, self.oracle)
        for module in modules:
            module.train(training)
        try:
            yield
        finally:
            for module in modules:
                module.train(before)

    @property
    def fallbacks(self) -> dict[str, int] | None:
        """What the candidate says of its own fallbacks so far; None when it does not count them."""
        counted = getattr(type(self.candidate), "fallbacks", None)
        return {str(k): int(v) for k, v in counted.items()} if isinstance(counted, dict) else None


def widen(inputs: Inputs) -> Inputs:
    """Every floating tensor in float64."""

    def one(x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_complex():
            return x.to(torch.complex128)
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    widened: Inputs = pytree.tree_map(one, inputs)
    return widened


def equal_leaves(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )


def _resize(x: Tensor, batch: int) -> Tensor:
    """The first rows, or for a larger batch new rows drawn from all elements of the tensor."""
    if batch <= x.shape[0]:
        return x[:batch].clone()
    flat = x.reshape(-1)
    picked = torch.randint(flat.numel(), (batch, *x.shape[1:]), device=x.device)
    return flat[picked]
