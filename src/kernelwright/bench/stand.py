"""Where variants are timed: inside of a process that runs user code, for a judge outside of it.

In: requests of the judge, with sets of inputs as data. Out: readings of a clock, and the results of
calls that were timed. The clock is taken from torch before any user code is loaded, and the judge
holds what it shows against its own.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from kernelwright.bench import roofline
from kernelwright.bench.aside import peak_bytes, synchronous_ms
from kernelwright.bench.clock import Clock, device_name, make_clock
from kernelwright.bench.context import matmul_precision, quiet_warnings, silence
from kernelwright.bench.inputs import choice, refill
from kernelwright.bench.steps import STEP, is_step, prepare_step
from kernelwright.bench.timings import CANDIDATE, CANDIDATE_GRAPH, EAGER_GRAPH, TF32, Timing
from kernelwright.bench.turns import turns
from kernelwright.bench.variants import (
    Variant,
    direct,
    in_tf32,
    is_tf32,
    prepare_candidate,
    prepare_compiled,
    prepare_graph,
    warm,
)
from kernelwright.problem import Problem
from kernelwright.verify.candidate import fallbacks_of
from kernelwright.verify.inputs import Inputs, taken
from kernelwright.verify.seat import STANDS
from kernelwright.verify.wire import told

MODES = {"compile": "default", "max-autotune": "max-autotune"}
NOTHING = "nothing"  # a variant that does nothing: what a round costs by itself
WARMUPS = {"cuda": 6, "cpu": 2}

Request = dict[str, Any]


class Stand:
    """One module, its sets of inputs, and the variants of it that are ready."""

    def __init__(self, module: nn.Module, device: torch.device, problem: Problem | None) -> None:
        self.module, self.device, self.problem = module, device, problem
        self.clock: Clock = make_clock(device)
        self.sets: list[Inputs] = []
        self.source: Inputs | None = None
        self.variants: dict[str, Variant] = {NOTHING: Variant(NOTHING, (_nothing,))}
        self.results: dict[tuple[str, int], Any] = {}

    def conditions(self, request: Request) -> dict[str, Any]:
        return {
            "flush_bytes": self.clock.flush_bytes,
            "clock": self.clock.what,
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
        }

    def take(self, request: Request) -> dict[str, Any]:
        """The sets of inputs to rotate among, and what they are refilled from."""
        self.sets = [taken(inputs, self.device) for inputs in request["sets"]]
        self.source = taken(request["source"], self.device)
        return {}

    def fill(self, request: Request) -> dict[str, Any]:
        """Other content in some sets, in place and without a trace; perhaps in one row of them."""
        assert self.source is not None
        for index, number in zip(request["sets"], request["numbers"], strict=True):
            if number is not None:
                refill(self.sets[index], self.source, number, request["row"])
        return {}

    def work(self, request: Request) -> dict[str, Any]:
        """What a call cannot avoid, and the arithmetic that the problem claims."""
        assert self.problem is not None
        with torch.no_grad():
            work = roofline.count_work(self.problem, self.module, self.sets[0])
        level = roofline.claimed_level(self.problem, work)
        return {
            "flops": work.flops,
            "bytes": work.bytes,
            "convolves": work.convolves,
            "level": level,
        }

    def prepare(self, request: Request) -> dict[str, Any]:
        """One variant, warm; a note where it cannot be made."""
        name, warmups = request["name"], WARMUPS[self.device.type]
        with torch.no_grad(), quiet_warnings(), silence():
            made = self._made(name, warmups)
        if isinstance(made, Timing):
            return {"note": made.note}
        self.variants[name] = made
        return {"note": None}

    def _made(self, name: str, warmups: int) -> Variant | Timing:
        if is_step(name):
            return self._step(name, warmups)
        if is_tf32(name):
            with matmul_precision("high"):
                return in_tf32(self._made(name.removesuffix(TF32), warmups), name)
        if name in MODES:
            torch.compiler.reset()
            return prepare_compiled(name, MODES[name], self.module, self.sets, warmups)
        if name in (EAGER_GRAPH, CANDIDATE_GRAPH):
            return prepare_graph(name, self.module, self.sets)
        if name == CANDIDATE:
            return prepare_candidate(name, self.module, self.sets, warmups)
        eager = direct(name, self.module, self.sets)
        warm(eager, warmups)
        return eager

    def _step(self, name: str, warmups: int) -> Variant | Timing:
        """Training steps; of torch.compile's module the parameters are those of the module."""
        run = self.module
        if (mode := MODES.get(name.removesuffix(STEP))) is not None:
            torch.compiler.reset()
            run = cast(nn.Module, torch.compile(self.module, mode=mode, dynamic=False))
        return prepare_step(name, self.module, run, self.sets, warmups)

    def beside(self, request: Request) -> dict[str, Any]:
        """A call that is waited for, in ms, and the peak of its memory."""
        call = self.variants[request["name"]].calls[0]
        with torch.no_grad(), quiet_warnings(), silence():
            peak = peak_bytes(call, self.device) if request["peak"] else 0
            taken = [synchronous_ms(call, self.clock) for _ in range(request["count"])]
        return {"call_ms": taken, "peak_bytes": peak}

    def rounds(self, request: Request) -> dict[str, Any]:
        """Rounds of one call for each of some variants; the last result on each set is kept.

        Before each call its set gets new content, so that nobody can have computed it before.
        """
        names, numbers, readings = request["names"], request["numbers"], []
        before = fallbacks_of(self.module) or Counter()
        fills = [self._fill(k, number) for k, number in enumerate(numbers, request["first"])]
        with torch.no_grad(), quiet_warnings():
            for k, fill in enumerate(fills, request["first"]):
                readings.append(self._round(names, k, fill))
        fell = (fallbacks_of(self.module) or Counter()) - before
        return {"readings": readings, "fell_back": dict(fell)}

    def _fill(self, k: int, number: int | None) -> Callable[[], None]:
        """What gives the set of a round new content, with all decided that the host has to do."""
        if number is None:
            return _nothing
        assert self.source is not None
        place = self.sets[k % len(self.sets)]
        chosen = choice(place, self.source, number)
        return functools.partial(refill, place, self.source, number, chosen=chosen)

    def _round(self, names: list[str], k: int, fill: Callable[[], None]) -> list[list[float]]:
        """Each round begins with another variant, and is on another set of inputs."""
        taken: dict[int, Any] = {}
        for turn in turns(len(names), k):
            calls = self.variants[names[turn]].calls
            place = names[turn], k % len(calls)
            fill()
            taken[turn] = self.clock.time(self._keeping(place, calls[place[1]]))
        self.clock.finish()
        return [[taken[i].device_ms(), taken[i].host_ms] for i in range(len(names))]

    def burst(self, request: Request) -> dict[str, Any]:
        """Calls back to back, with no pause in which work could hide; the judge has the clock."""
        name, first = request["name"], request["first"]
        calls = self.variants[name].calls
        with torch.no_grad(), quiet_warnings():
            for k in range(first, first + request["count"]):
                self._keeping((name, k % len(calls)), calls[k % len(calls)])()
            self.clock.finish()
        return {}

    def _keeping(self, place: tuple[str, int], call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            self.results[place] = call()

        return run

    def result(self, request: Request) -> dict[str, Any]:
        """What the last call of a variant on a set returned."""
        return {"value": told(self.results[request["name"], request["set"]])}

    def answer(self, request: Request) -> dict[str, Any]:
        return REQUESTS[request["what"]](self, request)


def _nothing() -> None:
    return None


REQUESTS: dict[str, Callable[[Stand, Request], dict[str, Any]]] = {
    "conditions": Stand.conditions,
    "take": Stand.take,
    "fill": Stand.fill,
    "work": Stand.work,
    "prepare": Stand.prepare,
    "rounds": Stand.rounds,
    "burst": Stand.burst,
    "beside": Stand.beside,
    "result": Stand.result,
}
STANDS.append(Stand)
