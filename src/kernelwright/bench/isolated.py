"""bench for files: the reference and the candidate in processes of their own, timed in turns.

In: a Subject of verify. Out: Timings. The variants of the original are timed in its process, those
of the candidate in its own, block by block, so that drift of the machine hits all alike. The clocks
run there; the judge holds every block against its own and then asks for a result of its choice: who
works on elsewhere after the clock was stopped has to end that first. The results of timed calls are
then judged as verify judges them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kernelwright.bench.inputs import InputSets, make_sets
from kernelwright.bench.roofline import Work
from kernelwright.bench.stand import NOTHING
from kernelwright.bench.timings import (
    BASELINES,
    CANDIDATE,
    CANDIDATE_GRAPH,
    EAGER_GRAPH,
    Timing,
)
from kernelwright.errors import InputError, KernelwrightError, VerificationError
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import map_tensors
from kernelwright.verify.judge import Trial, attempted, conclude, settle, structure, trial_of
from kernelwright.verify.side import Broken, Raised, Side
from kernelwright.verify.sides import ONCE
from kernelwright.verify.subject import Subject

MIN_ROUNDS, MAX_ROUNDS = 5, 200
BLOCK = 10
LOOKED_AT = 2  # sets whose timed results are judged
SLACK_MS = 0.2  # of a round, in which messages and clocks may differ
FETCH_SLACK_MS = 2.0  # by which the times differ that equal results take to come
DOUBTS = 4  # blocks more, where the clocks differ: a busy machine does not differ in all of them
BELIEVED = 0.6  # of the judge's time that the candidate's clock must show at least


@dataclass(frozen=True)
class Block:
    """What one round took on average, by the clock of the process and by the judge's, in ms."""

    claimed: float
    judged: float


@dataclass
class Blocks:
    """Readings by variant, and every block by both clocks."""

    readings: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    fell: Counter[str] = field(default_factory=Counter)


class Isolated:
    """A Subject whose two processes time."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.chance = random.Random(subject.job.number("timing"))
        self.original, self.candidate = subject.reference.side, subject.side
        self.count = self.timed = 1
        self.about = self._time(self.original, "conditions")
        self._time(self.candidate, "conditions")

    def sets(self, batch: int | None) -> InputSets:
        """Made of the file's inputs by the judge; each process gets its own copies."""
        drawn = self.subject.draw_all(0)
        sets = make_sets(drawn.args, batch, int(self.about["flush_bytes"]), drawn.kwargs)
        self.count = len(sets)
        for side in (self.original, self.candidate):
            self._time(side, "take", sets=sets)
        return sets

    def work(self) -> tuple[Work, str]:
        try:
            found = self._time(self.original, "work")
        except Raised as error:
            raise InputError(f"The model's own forward raised {error}.") from error
        return Work(found["flops"], found["bytes"], found["convolves"]), str(found["level"])

    def prepare(self, name: str) -> Timing | None:
        """A row with a note if the variant cannot be had."""
        side = self.candidate if name in (CANDIDATE, CANDIDATE_GRAPH) else self.original
        try:
            note = self._time(side, "prepare", name=name)["note"]
        except (Raised, Broken) as error:
            if name == CANDIDATE:
                raise failed(error) from error
            return Timing(name, note=str(error)[:100])
        return None if note is None else Timing(name, note=str(note))

    def measure(self, names: Sequence[str], seconds: float) -> Blocks:
        """Blocks of the original's variants, of nothing, and of the candidate's, in turns."""
        ours = [name for name in names if name in (CANDIDATE, CANDIDATE_GRAPH)]
        theirs = [name for name in names if name not in ours]
        start = time.perf_counter()
        self._block(Blocks(), theirs, ours, 0, 1)
        each = time.perf_counter() - start
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds * len(names) / max(each, 1e-9))))
        blocks, self.timed = Blocks(), rounds
        for first in range(0, rounds, BLOCK):
            self._block(blocks, theirs, ours, first, min(BLOCK, rounds - first))
        for _ in range(DOUBTS):
            if disbelieved(blocks):
                self._block(blocks, theirs, ours, 0, min(BLOCK, rounds))
        return blocks

    def _block(
        self, blocks: Blocks, theirs: list[str], ours: list[str], first: int, count: int
    ) -> None:
        if theirs:
            self._timed(blocks, self.original, theirs, first, count)
        idle = self._timed(blocks, self.original, [NOTHING], first, count)
        for name in ours:
            taken = self._timed(blocks, self.candidate, [name], first, count)
            late = self._late("eager" in theirs, first, count) if name == CANDIDATE else 0.0
            last = blocks.readings[name][-count:]
            claimed = sum(map(max, last)) / count
            judged = taken - idle + late / count
            blocks.blocks.setdefault(name, []).append(Block(claimed, judged))

    def _timed(self, blocks: Blocks, side: Side, names: list[str], first: int, count: int) -> float:
        """A block of rounds, and what one took by the judge's clock, in ms."""
        start = time.perf_counter()
        try:
            found = self._time(side, "rounds", names=names, first=first, count=count)
        except (Raised, Broken) as error:
            raise failed(error) from error
        wall = (time.perf_counter() - start) * 1e3
        for index, name in enumerate(names):
            pairs = [(float(r[index][0]), float(r[index][1])) for r in found["readings"]]
            blocks.readings.setdefault(name, []).extend(pairs)
        if side is self.candidate:
            blocks.fell.update({str(k): int(v) for k, v in found["fell_back"].items()})
        return wall / count

    def _late(self, has_eager: bool, first: int, count: int) -> float:
        """How much longer than eager's a result takes to come that the judge picks now, in ms.

        Whoever works on after the clock was stopped has to end that work first.
        """
        index = self._one_of(first, count)
        ours = self._fetched(self.candidate, CANDIDATE, index)
        side, name = (self.original, "eager") if has_eager else (self.candidate, CANDIDATE)
        return max(0.0, ours - self._fetched(side, name, index) - FETCH_SLACK_MS)

    def _fetched(self, side: Side, name: str, index: int) -> float:
        start = time.perf_counter()
        try:
            self._time(side, "result", name=name, set=index)
        except (Raised, Broken) as error:
            raise failed(error) from error
        return (time.perf_counter() - start) * 1e3

    def _one_of(self, first: int, count: int) -> int:
        return (first + self.chance.randrange(count)) % self.count

    def judge(self, sets: InputSets) -> list[Finding]:
        """The last timed results on some of the sets, against eager and float64 on the same."""
        timed = min(len(sets), self.timed)
        chosen = self.chance.sample(range(timed), min(LOOKED_AT, timed))
        return [self._judged(sets, index) for index in chosen]

    def _judged(self, sets: InputSets, index: int) -> Finding:
        name = f"timed inputs {index + 1} of {len(sets)}"
        case = Case(name, lambda draw: map_tensors(Tensor.clone, sets[(index + draw) % len(sets)]))
        ours = self._time(self.candidate, "result", name=CANDIDATE, set=index)["value"]
        theirs = self.subject.original(case.make(0))
        if self.subject.drew:
            return Finding(None, "the model draws random numbers: timed results have no reference")
        if (wrong := structure(ours, theirs, strides=True)) is not None:
            return Finding(False, f"on {name} {wrong}")
        exact = attempted(lambda: self.subject.oracle(case.make(0)))
        if isinstance(exact, Raised):
            return Finding(None, f"the result could not be checked in float64: {exact}")
        trial = trial_of(name, ours, theirs, exact)
        if not isinstance(trial, Trial):
            return trial
        return conclude(name, settle(self.subject, case, 0, ONCE, trial))

    def _time(self, side: Side, what: str, **fields: Any) -> dict[str, Any]:
        return side.ask("time", what=what, **fields)


def failed(error: Raised | Broken) -> KernelwrightError:
    return VerificationError(f"The candidate's forward raised {error}.")


def disbelieved(blocks: Blocks) -> list[str]:
    """Where the candidate's clock and the judge's cannot both be right, in any block."""
    told = []
    for name, pairs in blocks.blocks.items():
        if min(BELIEVED * b.judged - b.claimed for b in pairs) > SLACK_MS:
            claimed = statistics.median(b.claimed for b in pairs)
            judged = statistics.median(b.judged for b in pairs)
            told.append(
                f"{name} takes {claimed:.4f} ms by the clock in its own process, but {judged:.4f} "
                "ms by the judge's: work is left after the call, or the clock is not torch's"
            )
    return told


def rows_of(blocks: Blocks, prepared: dict[str, Timing | None]) -> tuple[Timing, ...]:
    rows = []
    for name, row in prepared.items():
        pairs = blocks.readings.get(name, [])
        rows.append(row or Timing.of(name, [p[0] for p in pairs], [p[1] for p in pairs]))
    return tuple(rows)


def wanted(baselines: Sequence[str] | None, on_gpu: bool) -> list[str]:
    """All variants in the order of the table."""
    graphs = [EAGER_GRAPH, CANDIDATE_GRAPH] if on_gpu else []
    return [*(BASELINES if baselines is None else baselines), CANDIDATE, *graphs]
