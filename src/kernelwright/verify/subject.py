"""The model under test: the reference's process and the candidate's, with inputs and weights.

In: a job, which names the files and the seed, and a Server. Out: a Subject that draws inputs of any
batch size, keeps the weights of the three modules the same, and runs acts on them. Every random
number comes from one seed, which the candidate never sees: inputs and weights reach it as data.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.errors import InputError
from kernelwright.problem import describe
from kernelwright.verify import weights
from kernelwright.verify.inputs import Inputs, seeded, tensors_in, with_size
from kernelwright.verify.parameters import State
from kernelwright.verify.processes import Server, Starter, printable
from kernelwright.verify.seat import CANDIDATE, ORACLE, ORIGINAL
from kernelwright.verify.sent import Sent
from kernelwright.verify.side import Raised, Side
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.surroundings import Surroundings
from kernelwright.verify.weights import Names

SMALL_SECONDS = 0.04  # what one eager run at the reduced batch may take
SMALL_ELEMENTS = 1 << 22  # that then travel between processes, and are compared
TRIAL_BATCH = 32
SMALLEST_BATCH = 4
DRAWN_BYTES, MOST_DRAWN = 1 << 29, 64  # of the file's own inputs that are kept
FEWEST_DRAWN = 8  # of those cut to a batch; larger ones are made anew
QUIET_SECONDS, LOADS, CALLS = 20.0, 3.0, 20.0  # and so many times what the original takes
REFERENCE = "reference"
SHOWN = 120  # characters of what a candidate calls the cause of a fallback


@dataclass(frozen=True)
class Job:
    """What is verified, and by which numbers. `text` is the candidate that was hashed."""

    model: str
    candidate: str
    text: str | None
    device: str
    precision: str
    conv_tf32: bool
    training: bool | None
    seed: int
    thorough: bool = False
    quick: bool = False

    def number(self, *labels: object) -> int:
        """A number that depends on the seed and on what it is for, and tells nothing of either."""
        text = "\0".join(str(x) for x in (self.seed, *labels))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def to_load(self, role: str, arguments: Any = None) -> dict[str, Any]:
        return {
            "role": role,
            "model": self.model,
            "candidate": self.candidate if role == CANDIDATE else None,
            "text": self.text if role == CANDIDATE else None,
            "arguments": arguments,
            "device": self.device,
            "precision": self.precision,
            "conv_tf32": self.conv_tf32,
            "training": self.training,
            "seed": self.number("construction") % 2**31,
        }


@dataclass(frozen=True)
class Drawn:
    """Inputs that were drawn, flat, with the versions that their tensors had then."""

    leaves: list[Any]
    tree: Any
    versions: list[int]
    size: int

    @classmethod
    def of(cls, leaves: list[Any], tree: Any) -> Drawn:
        size = sum(x.numel() * x.element_size() for x in leaves if isinstance(x, Tensor))
        return cls(leaves, tree, _versions(leaves), size)

    @property
    def written(self) -> bool:
        return _versions(self.leaves) != self.versions


def _versions(leaves: list[Any]) -> list[int]:
    return [x._version for x in leaves if isinstance(x, Tensor)]


class Reference:
    """The original and the oracle in their process, and all that is known of the model.

    Several candidates of one model may be compared with one Reference, one after the other. What
    the model takes and costs is found out by `try_out`.
    """

    batch: int
    resized: frozenset[int]
    seconds: float
    elements: float
    small: int

    def __init__(self, job: Job, server: Server) -> None:
        self.job = job
        self.sent = Sent()
        self._drawn: dict[tuple[int, int, frozenset[int]], Drawn] = {}
        self.side = Side(server, REFERENCE, job.model, self.sent)
        self.load()
        first = self._draw_all(0)
        size = sum(x.numel() * x.element_size() for x in tensors_in(first))
        kept = min(max(3, DRAWN_BYTES // max(size, 1)), MOST_DRAWN)
        # Inside of containers the two processes may not number tensors alike.
        flat = all(
            isinstance(x, Tensor | int | float) for x in (*first.args, *first.kwargs.values())
        )
        self.cuts = flat and size > DRAWN_BYTES // MOST_DRAWN
        self.draw_all = functools.lru_cache(maxsize=kept)(
            lambda draw: self._draw_all(draw) if draw else first
        )
        self.training: bool = self.about["training"]
        self.arguments: Any = self.about["arguments"]
        self.first: State = self.about["state"]
        self.names = _names(self.about)
        self.drew = False
        self.took = math.inf
        self.volatile: dict[str, Any] = {}
        self.random_by_mode: dict[bool, bool] = {}
        self.tried_out = False

    def try_out(self) -> None:
        """Which inputs carry the batch, and how much of it is affordable; once."""
        if self.tried_out:
            return
        self.tried_out = True
        first = tensors_in(self.draw_all(0))[0]
        self.batch = int(first.shape[0]) if first.ndim else 1
        self.resized = self._find_resized()
        self.seconds, self.elements = self._estimate()
        self.small = self._affordable_batch()

    def load(self) -> None:
        """A fresh process, with the model as it is constructed."""
        start = time.perf_counter()
        self.side.start()
        self.about = known(self.side.ask("load", **self.job.to_load(REFERENCE)))
        self.loaded = time.perf_counter() - start

    def run(
        self,
        role: str,
        inputs: Inputs,
        act: Act = ONCE,
        draw: int = 0,
        replay: bool = False,
        rounded: dict[str, Any] | None = None,
    ) -> Any:
        start = time.perf_counter()
        answer = self.side.ask(
            "run",
            role=role,
            act=act.name,
            parameters=act.parameters,
            inputs=inputs,
            noise=self.job.number("noise", draw),
            replay=replay,
            rounded=rounded,
        )
        if role == ORIGINAL and act is ONCE:
            self.took = min(self.took, time.perf_counter() - start)
        if role == ORIGINAL:
            self.drew = bool(answer["drew"])
            self.volatile.update(answer["volatile"])
        self.ran = float(answer["ran"])
        return answer["value"]

    def _draw_all(self, draw: int) -> Inputs:
        return self.side.ask("draw", seed=self.job.number("inputs", draw))["value"]  # type: ignore[no-any-return]

    def _draw_rows(self, draw: int, rows: int) -> Inputs:
        seed, resized = self.job.number("inputs", draw), sorted(self.resized)
        return self.side.ask("draw", seed=seed, rows=rows, resized=resized)["value"]  # type: ignore[no-any-return]

    def draw(self, batch: int, draw: int) -> Inputs:
        """The file's own inputs, cut or resampled to the batch size.

        Small ones are the same tensors every time, until somebody writes to them: so they are sent
        once, and the whole that they were cut from is not asked for again.
        """
        key = batch, draw, self.resized
        drawn = self._drawn.pop(key, None)
        if drawn is None or drawn.written:
            drawn = Drawn.of(*self._sized(batch, draw))
        if drawn.size <= DRAWN_BYTES // FEWEST_DRAWN:
            self._drawn[key] = drawn
        while sum(x.size for x in self._drawn.values()) > DRAWN_BYTES:
            del self._drawn[next(iter(self._drawn))]
        inputs: Inputs = pytree.tree_unflatten(drawn.leaves, drawn.tree)
        return inputs

    def _sized(self, batch: int, draw: int) -> tuple[list[Any], Any]:
        """Of large inputs, but the first that many cases need, no more rows come than are asked."""
        cut = self.cuts and draw and self.resized and batch <= self.batch
        whole = self._draw_rows(draw, batch) if cut else self.draw_all(draw)
        leaves, tree = pytree.tree_flatten(whole)
        with seeded(self.job.number("rows", draw)):
            sized = [
                with_size(x, 0, batch)
                if i in self.resized
                else x.clone()
                if isinstance(x, Tensor)
                else x
                for i, x in enumerate(leaves)
            ]
        return sized, tree

    def _find_resized(self) -> frozenset[int]:
        """Which inputs carry the batch: all of the first one's size, or it alone, or none."""
        leaves = pytree.tree_leaves(self.draw_all(0))
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
            self.run(ORIGINAL, self.draw(batch, 0))
        except Raised:
            return False
        return True

    def _estimate(self) -> tuple[float, float]:
        """Eager's time on the file's own inputs and their and its results' elements.

        They are extrapolated from a part of the batch.
        """
        trial = min(self.batch, TRIAL_BATCH) if self.resized else self.batch
        try:
            inputs = self.draw(trial, 0)
            self.run(ORIGINAL, inputs)
            outputs = self.run(ORIGINAL, inputs)
        except Raised as error:
            given = ", ".join(describe(x) for x in pytree.tree_leaves(self.draw_all(0)))
            raise InputError(f"Model raised {error} on its own inputs ({given}).") from error
        elements = sum(x.numel() for x in tensors_in((inputs, outputs)))
        times = self.batch / max(trial, 1)
        return self.ran * times, elements * times

    def _affordable_batch(self) -> int:
        if not self.resized:
            return self.batch
        by_time = SMALL_SECONDS / max(self.seconds, 1e-9)
        share = min(by_time, SMALL_ELEMENTS / max(self.elements, 1.0))
        return min(self.batch, max(SMALLEST_BATCH, int(self.batch * share)))

    def close(self) -> None:
        self.side.close()
        self.sent.close()


class Subject:
    """One problem and its candidate, each in its process."""

    def __init__(
        self, job: Job, server: Starter, reference: Reference, deadline: float = math.inf
    ) -> None:
        self.job = job
        self.precision, self.device = job.precision, torch.device(job.device)
        self.reference = reference
        self.surroundings = Surroundings(job.text, apart=self.device.type == "cpu")
        self.side = Side(server, CANDIDATE, job.candidate, reference.sent, self.surroundings)
        self.until(deadline)
        self.took = math.inf
        self.misused: str | None = None  # the level of a use in which it was wrong
        self.counted: Counter[str] = Counter()
        self._modes: list[bool] = []
        self.counts = False
        self.blamed = 0
        self.states: dict[str, State] = {"initial": self.reference.first}
        self.state: State = self.reference.first
        self.start_reference()
        try:
            self.start_candidate(meanwhile=reference.try_out)
        except BaseException:
            self.close()
            raise

    # Processes

    def start_candidate(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """A fresh process with the candidate in it, its weights those of the others.

        A GPU is not disturbed by the compilers of a candidate that builds kernels; a CPU is.
        """
        self._modes = []
        if self.device.type == "cpu":
            meanwhile()
        self.side.start()
        self.side.patience = self.patience
        request = self.job.to_load(CANDIDATE, self.reference.arguments)
        self.side.tell("load", **{**request, "training": self.training})
        if self.device.type != "cpu":
            meanwhile()
        self.about = known(self.side.hear())
        self.give(self.side, self.state)

    def start_reference(self) -> None:
        """The reference as in the beginning, in a new process if it has lost its own."""
        if not self.reference.side.running:
            self.reference.load()
        self.give(self.reference.side, self.state)

    def restart(self) -> None:
        """After something broke: new processes, and the first weights."""
        self.state = self.reference.first
        if not self.reference.side.running:
            self.start_reference()
        self.start_candidate()

    def until(self, deadline: float) -> None:
        self.side.deadline = self.reference.side.deadline = deadline

    @property
    def patience(self) -> float:
        """The seconds of waiting after which a candidate is taken to be hanging."""
        each = self.seconds if self.reference.tried_out else 0.0
        known = QUIET_SECONDS + LOADS * self.reference.loaded + CALLS * each
        return known * (10.0 if self.job.thorough else 1.0)

    @property
    def longer(self) -> float:
        """By how many seconds a call of the candidate takes longer than one of the original."""
        return max(0.0, self.took - self.reference.took) if self.took < math.inf else 0.0

    @property
    def apart(self) -> str:
        """What keeps the candidate from the rest of the machine."""
        process = self.side.process
        if process is not None and process.apart:
            return "namespaces of its own (users, processes, network, mounts), a fresh home"
        return "no namespaces, a fresh home"

    # Facts

    @property
    def names(self) -> Names:
        return self.reference.names

    @property
    def training(self) -> bool:
        return self.reference.training

    @property
    def batch(self) -> int:
        return self.reference.batch

    @property
    def small(self) -> int:
        return self.reference.small

    @property
    def resized(self) -> frozenset[int]:
        return self.reference.resized

    @property
    def seconds(self) -> float:
        return self.reference.seconds

    @property
    def drew(self) -> bool:
        return self.reference.drew

    @property
    def case_seconds(self) -> float:
        """At the reduced batch, which most cases have."""
        return self.seconds * self.small / max(self.batch, 1)

    @property
    def random(self) -> bool:
        """Whether eager draws random numbers, in the mode it is in now."""
        known = self.reference.random_by_mode
        if self._mode not in known:
            self.original(self.draw(self.small, 0))
            known[self._mode] = self.drew
        return known[self._mode]

    @property
    def random_in_any_mode(self) -> bool:
        for training in (False, True):
            if training not in self.reference.random_by_mode:
                with self.mode(training):
                    _ = self.random
        return any(self.reference.random_by_mode.values())

    @property
    def may_round(self) -> bool:
        """Whether torch is allowed TF32 here, so that eager's error is TF32's by right."""
        if self.device.type != "cuda":
            return False
        convolves = any(x.ndim >= 3 for x in self.state.values())
        return self.precision != "highest" or (self.job.conv_tf32 and convolves)

    @property
    def fallbacks(self) -> dict[str, int] | None:
        """What the candidate says of its own fallbacks so far; None when it does not count them."""
        return dict(self.counted) if self.counts else None

    # Runs

    def draw(self, batch: int, draw: int) -> Inputs:
        return self.reference.draw(batch, draw)

    def draw_all(self, draw: int) -> Inputs:
        return self.reference.draw_all(draw)

    def candidate(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        start = time.perf_counter()
        answer = self.side.ask(
            "run",
            role=CANDIDATE,
            act=act.name,
            parameters=act.parameters,
            inputs=inputs,
            noise=self.job.number("noise", draw),
            volatile=self.reference.volatile,
        )
        if act is ONCE:
            self.took = min(self.took, time.perf_counter() - start)
        self._count(answer.get("fell"))
        return answer["value"]

    def original(self, inputs: Inputs, act: Act = ONCE, draw: int = 0) -> Any:
        return self.reference.run(ORIGINAL, inputs, act, draw)

    def oracle(self, inputs: Inputs, act: Act = ONCE, draw: int = 0, replay: bool = False) -> Any:
        return self.reference.run(ORACLE, inputs, act, draw, replay)

    def rounded(
        self,
        inputs: Inputs,
        act: Act = ONCE,
        draw: int = 0,
        number: int = 0,
        everywhere: bool = False,
    ) -> Any:
        """The original as if operands were rounded to TF32 where torch may do so, or everywhere."""
        how = {"number": number, "everywhere": everywhere}
        return self.reference.run(ORIGINAL, inputs, act, draw, rounded=how)

    @contextmanager
    def shaken(self, number: int) -> Iterator[None]:
        """Original and oracle with every parameter off by about a thousandth."""
        side = self.reference.side
        side.ask("shake", seed=self.job.number("shaken", number))
        try:
            yield
        finally:
            if side.running:
                side.ask("shake", seed=None)

    def _count(self, fell: Any) -> None:
        if isinstance(fell, dict):
            self.counts = True
            counted = {printable(str(k))[:SHOWN]: int(v) for k, v in fell.items()}
            self.counted += Counter(counted)

    # Weights and modes

    def use(self, name: str) -> None:
        """The parameters of all three modules in a named state."""
        state = self._named(name)
        if self.state is not state:
            self.set_state(state)

    def _named(self, name: str) -> State:
        if name not in self.states:
            source, draw = weights.DRAWN[name]
            known = self._named(source)
            self.states[name] = draw(self.names, known, self.job.number("weights"))
        return self.states[name]

    def set_state(self, state: State) -> None:
        self.side.tell("write", state=state)
        try:
            self.set_reference_state(state)
        finally:
            self.side.hear()

    def set_reference_state(self, state: State) -> None:
        """New parameters for original and oracle; the candidate gets them in its own way."""
        self.state = state
        self.give(self.reference.side, state)

    def give(self, side: Side, state: State) -> None:
        side.ask("write", state=state)

    def close(self) -> None:
        """End the candidate's process; the reference may serve others."""
        self.side.close()
        self.surroundings.close()

    @property
    def _mode(self) -> bool:
        return self._modes[-1] if self._modes else self.training

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        for side in (self.side, self.reference.side):
            side.ask("mode", training=training)
        self._modes.append(training)
        try:
            yield
        finally:
            self._modes.pop()
            for side in (self.side, self.reference.side):
                if side.running:
                    side.ask("mode", training=None)

    @contextmanager
    def constructed(self, arguments: Inputs, seed: int) -> Iterator[dict[str, Any]]:
        """Another original in the place of the first; yields what is known of it."""
        side = self.reference.side
        request: dict[str, Any] = {
            "arguments": arguments,
            "seed": seed,
            "training": self._mode,
        }
        about = known(side.ask("construct", **request))
        kept, names = self.state, self.reference.names
        self.state, self.reference.names = about["state"], _names(about)
        volatile, self.reference.volatile = self.reference.volatile, {}
        try:
            yield about
        finally:
            self.state, self.reference.names = kept, names
            self.reference.volatile = volatile
            if side.running:
                side.ask("back")

    @contextmanager
    def candidate_instead(self, do: str, **request: Any) -> Iterator[dict[str, Any]]:
        """Another candidate in the place of the first: one constructed now, or a copy of it."""
        about = self.side.ask(do, **request)
        try:
            yield known(about) if "state" in about else about
        finally:
            if self.side.running:
                self.side.ask("back")


def known(about: dict[str, Any]) -> dict[str, Any]:
    """What a process tells of a module, with the values that its state_dict shares filled in."""
    state = about["state"]
    filled = {k: state.get(k) if v is None else v for k, v in about["state_dict"].items()}
    return {**about, "state_dict": filled}


def _names(about: dict[str, Any]) -> Names:
    return Names(tuple(about["parameters"]), tuple(about["buffers"]), dict(about["tied"]))
