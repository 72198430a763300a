"""bench for files: the reference and the candidate in processes of their own, timed in turns.

In: a Subject of verify. Out: Timings. The variants of the original are timed in its process, those
of the candidate in its own, block by block, so that drift of the machine hits all alike. The clocks
run there. The candidate's is not taken at its word: beside each block the judge asks for a burst of
calls, back to back, by its own clock (witness.py). Every timed call has inputs that no call had
before. A result of the timed calls, one of the quickest burst, and one on inputs of which a single
row was changed, are then judged as verify judges them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernelwright.bench.aside import SYNCHRONOUS
from kernelwright.bench.inputs import InputSets, leading_size, make_sets, refill
from kernelwright.bench.roofline import Work
from kernelwright.bench.stand import NOTHING
from kernelwright.bench.steps import STEP
from kernelwright.bench.timings import (
    BASELINES,
    CANDIDATE,
    CANDIDATE_GRAPH,
    EAGER_GRAPH,
    TF32,
    Timing,
)
from kernelwright.bench.witness import Burst, Look, Rounds, Witness
from kernelwright.errors import InputError, KernelwrightError, VerificationError
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import equal_leaves, same_bits
from kernelwright.verify.inputs import Inputs, map_tensors, tensors_in
from kernelwright.verify.judge import Trial, attempted, conclude, settle, structure, trial_of
from kernelwright.verify.side import Broken, Raised, Side
from kernelwright.verify.sides import ONCE, Act
from kernelwright.verify.subject import Subject

MIN_ROUNDS, MAX_ROUNDS = 5, 200
BLOCK = 10
FETCH_SLACK_MS = 2.0  # by which the times differ that equal results take to come
DOUBT_SECONDS = 5.0  # more of both, where the clocks differ: a busy machine does not always differ
LAST_LOOKS = 2  # at results on inputs that are nearly those of the call before


@dataclass(frozen=True)
class Content:
    """What a set of inputs holds: what it held first, or what a number has made of it.

    Then perhaps in one row what another number has made.
    """

    index: int
    number: int | None = None
    row: int | None = None
    part: int | None = None

    def of(self, sets: InputSets, source: Inputs) -> Inputs:
        made = map_tensors(Tensor.clone, sets[self.index])
        if self.number is not None:
            refill(made, source, self.number)
        if self.part is not None:
            refill(made, source, self.part, self.row)
        return made


@dataclass
class Blocks:
    """Readings by variant, and what the judge saw of the candidate's."""

    readings: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    witnesses: dict[str, Witness] = field(default_factory=dict)
    fell: Counter[str] = field(default_factory=Counter)
    looked: Look | None = None  # at a result of any block, each as likely
    values: dict[Content, Any] = field(default_factory=dict)  # the first that was seen
    odd: list[Look] = field(default_factory=list)  # where another one was seen

    def saw(self, look: Look) -> Look:
        """Every result that is fetched comes by here: two of one content should be one."""
        content, value = look
        known = self.values.setdefault(content, value)
        if not self.odd and not equal_leaves(*map(pytree.tree_leaves, (known, value))):
            self.odd = [(content, known), look]
        return look


class Isolated:
    """A Subject whose two processes time."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.chance = random.Random(subject.job.number("timing"))
        self.original, self.candidate = subject.reference.side, subject.side
        self.source = Inputs((), {})
        self.refills = False  # where inputs lie so that they cannot be written
        self.writes = self._writes()
        self.contents: list[Content] = []  # of the candidate's sets
        self.ready_s: dict[str, float] = {}  # by variant, until it was warm
        self.about = self._time(self.original, "conditions")
        self._time(self.candidate, "conditions")

    def sets(self, batch: int | None) -> InputSets:
        """Made of the file's inputs by the judge; each process gets its own copies."""
        self.source = drawn = self.subject.draw_all(0)
        sets = make_sets(drawn.args, batch, int(self.about["flush_bytes"]), drawn.kwargs)
        self.contents = [Content(index) for index in range(len(sets))]
        self.refills = all(_lies_apart(x) for inputs in sets for x in tensors_in(inputs))
        for side in (self.original, self.candidate):
            self._time(side, "take", sets=sets, source=drawn)
        return sets

    def work(self) -> tuple[Work, str]:
        try:
            found = self._time(self.original, "work")
        except Raised as error:
            raise InputError(f"The model's own forward raised {error}.") from error
        return Work(found["flops"], found["bytes"], found["convolves"]), str(found["level"])

    def degenerate(self) -> bool:
        """Whether eager gives the same on other inputs: then whatever is fast is so for nothing."""
        size = self.subject.small
        first, second = (self.subject.draw(size, draw) for draw in range(2))
        if equal_leaves(pytree.tree_leaves(first), pytree.tree_leaves(second)):
            return False  # the file gives the same inputs always
        results = [attempted(lambda: self.subject.original(x)) for x in (first, second)]  # noqa: B023
        if self.subject.drew or any(isinstance(x, Raised) for x in results):
            return False
        return equal_leaves(*map(pytree.tree_leaves, results))

    def prepare(self, name: str) -> Timing | None:
        """A row with a note if the variant cannot be had."""
        side = self._side(name)
        start = time.perf_counter()
        try:
            note = self._time(side, "prepare", name=name)["note"]
            self.ready_s[name] = self.ready_s.get(name, 0.0) + time.perf_counter() - start
        except (Raised, Broken) as error:
            if name == CANDIDATE:
                raise failed(error) from error
            return Timing(name, note=str(error)[:100])
        return None if note is None else Timing(name, note=str(note))

    def _side(self, name: str) -> Side:
        own = name.removesuffix(STEP) in (CANDIDATE, CANDIDATE_GRAPH)
        return self.candidate if own else self.original

    def beside(self, row: Timing, name: str) -> Timing:
        """The row with what is measured beside its times; a graph's memory is there before."""
        if row.median_ms is None:
            return row
        on_gpu = self.subject.device.type == "cuda"
        peak = name not in (EAGER_GRAPH, CANDIDATE_GRAPH)
        count = SYNCHRONOUS if on_gpu else 0  # on a CPU every timed call is waited for
        _, found = self._spent(self._side(name), "beside", name=name, count=count, peak=peak)
        calls = [float(ms) for ms in found["call_ms"]]
        return replace(
            row,
            call_ms=statistics.median(calls) if calls else row.median_ms,
            peak_bytes=int(found["peak_bytes"]) if peak else None,
            compile_s=self.ready_s.get(name) if name.removesuffix(STEP) != "eager" else None,
        )

    def measure(self, names: Sequence[str], seconds: float) -> Blocks:
        """Blocks of the original's variants, of nothing, and of the candidate's, in turns."""
        ours = [name for name in names if self._side(name) is self.candidate]
        theirs = [name for name in names if name not in ours]
        start = time.perf_counter()
        self._block(Blocks(), theirs, ours, 0, 1)
        each = time.perf_counter() - start
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds * len(names) / max(each, 1e-9))))
        blocks = Blocks()
        for first in range(0, rounds, BLOCK):
            self._block(blocks, theirs, ours, first, min(BLOCK, rounds - first))
        deadline = time.perf_counter() + DOUBT_SECONDS
        while disbelieved(blocks) and time.perf_counter() < deadline:
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
            witness = blocks.witnesses.setdefault(name, Witness(name))
            witness.claims = [max(pair) for pair in blocks.readings[name]]
            witness.rounds.append(Rounds(statistics.mean(witness.claims[-count:]), taken, idle))
            if name == CANDIDATE and not self.chance.randrange(len(witness.rounds)):
                blocks.looked = blocks.saw(self._looked(first, count))
            if witness.patient:
                self._burst(blocks, witness, "eager" in theirs)

    def _timed(self, blocks: Blocks, side: Side, names: list[str], first: int, count: int) -> float:
        """A block of rounds, and what one took by the judge's clock, in ms."""
        numbers = [self._number() for _ in range(count)]
        wall, found = self._spent(side, "rounds", names=names, first=first, numbers=numbers)
        if [[len(pair) for pair in r] for r in found["readings"]] != [[2] * len(names)] * count:
            raise VerificationError("The candidate's process tells no time for every call.")
        for index, name in enumerate(names):
            pairs = [(float(r[index][0]), float(r[index][1])) for r in found["readings"]]
            blocks.readings.setdefault(name, []).extend(pairs)
        if side is self.candidate:
            blocks.fell.update({str(k): int(v) for k, v in found["fell_back"].items()})
            for k, number in enumerate(numbers, first):
                self._holds(k % len(self.contents), number)
        return wall / count

    def _looked(self, first: int, count: int) -> Look:
        index = (first + self.chance.randrange(count)) % len(self.contents)
        _, found = self._spent(self.candidate, "result", name=CANDIDATE, set=index)
        return self.contents[index], found["value"]

    def _number(self) -> int | None:
        """What decides a content; None where sets keep theirs."""
        return self.chance.getrandbits(40) if self.refills else None

    def _holds(self, index: int, number: int | None) -> None:
        if number is not None:
            self.contents[index] = Content(index, number)

    def _refill(self) -> None:
        """Other content in all sets, in the same memory: a result that was kept is a wrong one."""
        numbers = [self._number() for _ in self.contents]
        places = list(range(len(numbers)))
        self._spent(self.candidate, "fill", sets=places, numbers=numbers, row=None)
        for index, number in enumerate(numbers):
            self._holds(index, number)

    def _writes(self) -> bool:
        """Whether the original changes its inputs: then a second call on them is another."""
        inputs = self.subject.draw(self.subject.small, 0)
        found = self.subject.original(inputs, Act("inputs after"))
        return not all(map(same_bits, found, tensors_in(inputs)))

    def _burst(self, blocks: Blocks, witness: Witness, has_eager: bool) -> None:
        """Calls back to back by the judge's clock, until a result has come that it picks then."""
        self._refill()
        name, count = witness.name, witness.calls
        first = self.chance.randrange(len(self.contents))
        idle, _ = self._spent(self.original, "burst", name=NOTHING, first=first, count=count)
        wall, _ = self._spent(self.candidate, "burst", name=name, first=first, count=count)
        look = None
        if name == CANDIDATE:
            index = (first + self.chance.randrange(count)) % len(self.contents)
            late, found = self._late(has_eager, index)
            wall += late
            look = None if self.writes else blocks.saw((self.contents[index], found["value"]))
        witness.saw(Burst(count, wall, idle), look)

    def _late(self, has_eager: bool, index: int) -> tuple[float, dict[str, Any]]:
        """How much longer than eager's a result takes to come, in ms, and the result.

        Whoever works on after the calls have returned has to end that first, or it is wrong.
        """
        ours, found = self._spent(self.candidate, "result", name=CANDIDATE, set=index)
        if has_eager:
            usual, _ = self._spent(self.original, "result", name="eager", set=0)
        else:
            usual, _ = self._spent(self.candidate, "result", name=CANDIDATE, set=index)
        return max(0.0, ours - usual - FETCH_SLACK_MS), found

    def _spent(self, side: Side, what: str, **fields: Any) -> tuple[float, dict[str, Any]]:
        """An answer, and what it took by the judge's clock, in ms."""
        start = time.perf_counter()
        try:
            found = self._time(side, what, **fields)
        except (Raised, Broken) as error:
            raise failed(error) from error
        return (time.perf_counter() - start) * 1e3, found

    def judge(self, sets: InputSets, blocks: Blocks) -> list[Finding]:
        """Two results of calls that were timed, against eager and float64 on the same inputs.

        And two of one content that differ, if there are any; then some on nearly the same inputs.
        """
        looks = (blocks.looked, blocks.witnesses[CANDIDATE].look, *blocks.odd)
        findings = [self._judged(sets, *look) for look in looks if look is not None]
        if self.refills and all(f.passed for f in findings):
            rows = leading_size(sets[0])
            # Different rows: whoever goes by one of them misses another one's change.
            some = self.chance.sample(range(rows), min(rows, LAST_LOOKS)) if rows else [None]
            findings += [self._judged(sets, *self._nearly_again(sets, row)) for row in some]
        return findings

    def _nearly_again(self, sets: InputSets, row: int | None) -> Look:
        """A call on a set, and the result of another one when a row of it has changed."""
        index = self.chance.randrange(len(sets))
        whole, part = self._number(), self._number()
        fill = {"sets": [index], "row": None, "numbers": [whole]}
        self._spent(self.candidate, "fill", **fill)
        self._spent(self.candidate, "burst", name=CANDIDATE, first=index, count=1)
        if self.writes:
            self._spent(self.candidate, "fill", **fill)
        self._spent(self.candidate, "fill", sets=[index], row=row, numbers=[part])
        self._spent(self.candidate, "burst", name=CANDIDATE, first=index, count=1)
        _, found = self._spent(self.candidate, "result", name=CANDIDATE, set=index)
        return Content(index, whole, row, part), found["value"]

    def _judged(self, sets: InputSets, content: Content, ours: Any) -> Finding:
        name = f"timed inputs {content.index + 1} of {len(sets)}"
        case = Case(name, lambda draw: content.of(sets, self.source))
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


def _lies_apart(x: Tensor) -> bool:
    """Whether every element has memory of its own, so that it can be written."""
    return bool(torch._debug_has_internal_overlap(x) == 0)


def failed(error: Raised | Broken) -> KernelwrightError:
    return VerificationError(f"The candidate's forward raised {error}.")


def disbelieved(blocks: Blocks) -> list[str]:
    """Where the candidate's clock and the judge's cannot both be right."""
    told = [witness.doubt() for witness in blocks.witnesses.values()]
    return [sentence for sentence in told if sentence is not None]


def rows_of(blocks: Blocks, prepared: dict[str, Timing | None]) -> tuple[Timing, ...]:
    rows = []
    for name, row in prepared.items():
        pairs = blocks.readings.get(name, [])
        rows.append(row or Timing.of(name, [p[0] for p in pairs], [p[1] for p in pairs]))
    return tuple(rows)


def wanted(baselines: Sequence[str] | None, on_gpu: bool, precision: str) -> list[str]:
    """All variants in the order of the table; on a GPU, baselines in TF32 beside those in IEEE."""
    graphs = [EAGER_GRAPH, CANDIDATE_GRAPH] if on_gpu else []
    named = list(BASELINES if baselines is None else baselines)
    also = [name + TF32 for name in named] if on_gpu and precision == "highest" else []
    return [*named, *also, CANDIDATE, *graphs]


def wanted_steps(baselines: Sequence[str] | None) -> list[str]:
    """Training steps: those of eager, torch.compile and the candidate."""
    named = ("eager", "compile") if baselines is None else baselines
    return [name + STEP for name in (*named, CANDIDATE)]
