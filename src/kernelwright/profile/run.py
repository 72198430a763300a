"""profile(): a model file or an emitted one in, a Profile and a trace out.

A model file is compiled and its ModelNew is run; of an emitted file the ModelNew in it, whose steps
are those of the Model in it. Launches are made visible to torch.profiler as ranges, by putting a
function around each that says when it begins and ends; on a GPU CUPTI's times of what they launch
are taken.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.bench.aside import exported
from kernelwright.bench.clock import device_name
from kernelwright.bench.context import matmul_precision, quiet_stderr, quiet_warnings
from kernelwright.bench.inputs import make_sets
from kernelwright.errors import InputError
from kernelwright.live import adopt
from kernelwright.problem import in_mode, load_problem, load_source
from kernelwright.profile.events import CALL, LAUNCH, RUN, Spent, calls, spent
from kernelwright.profile.predict import ceilings, predicted
from kernelwright.verify.candidate import fallbacks_of
from kernelwright.verify.inputs import Inputs, forward

Progress = Callable[[str, str], None]
WARMUPS = 3
UNTOLD = "the kernels of this file cannot be told apart: it starts them in another way"


@dataclass(frozen=True)
class Settings:
    """Under what a model is profiled; `threads` and `batch` as they are if None."""

    device: str = "auto"
    precision: str = "current"
    training: bool | None = None
    batch: int | None = None
    threads: int | None = None

    def changed(self, text: str) -> Settings:
        """The same with `precision=high`, `threads=1`, `batch=32` or `mode=eval`."""
        name, equals, value = text.partition("=")
        change: dict[str, Any] = {}
        if name in ("precision", "device") and equals:
            change = {name: value}
        elif name in ("threads", "batch") and value.isdecimal() and int(value):
            change = {name: int(value)}
        elif name == "mode" and value in ("eval", "train"):
            change = {"training": value == "train"}
        if change:
            return replace(self, **change)
        raise InputError(
            f"{text!r} is neither a file nor a setting; settings are precision=high, threads=1, "
            "batch=32, mode=eval and device=cpu."
        )


AS_IT_IS = Settings()


@dataclass(frozen=True)
class Profile:
    """What each step took, what was predicted of it, and the trace that says so."""

    model: str
    device: str
    precision: str
    calls: int
    call_us: float
    spent: tuple[Spent, ...]
    steps: tuple[dict[str, Any], ...]
    ceilings: dict[str, Any]
    notices: tuple[str, ...] = ()
    trace: dict[str, Any] | None = None

    def prediction(self, step: str) -> float | None:
        found = next((s for s in self.steps if s["name"] == step), None)
        return predicted(found, self.ceilings)[0] if found else None

    @property
    def told_us(self) -> float:
        """What steps took together; the rest of a call is the host's, or memory."""
        return sum(s.us for s in self.spent)

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(s), "predicted_us": self.prediction(s.step)} for s in self.spent]
        kept = ("model", "device", "precision", "calls", "call_us", "ceilings", "notices")
        return {
            **{name: getattr(self, name) for name in kept},
            "spent": rows,
            "steps": list(self.steps),
        }


def profile(
    path: str | Path,
    settings: Settings = AS_IT_IS,
    count: int = 20,
    progress: Progress | None = None,
) -> Profile:
    """Profile so many calls of what a file's model is optimized to."""
    from kernelwright.details import details
    from kernelwright.pipeline import compile_problem

    tell = progress or (lambda name, summary: None)
    problem = in_mode(load_problem(path, settings.device, settings.precision), settings.training)
    compiled = compile_problem(problem, progress)
    own = getattr(load_source(Path(path)), "ModelNew", None)
    module = adopt(own, problem.module) if own is not None else compiled.instantiate()
    notices = [] if _noted(module) or not compiled.fused else [UNTOLD]
    sets = make_sets(problem.inputs, settings.batch, 0, problem.kwargs)
    with _threads(settings.threads), matmul_precision(problem.precision), quiet_warnings():
        limits = ceilings(problem.device, problem.precision)
        trace = _trace(module, sets, count, problem.device)
    notices += [
        f"the original forward ran {n} times: {why}"
        for why, n in (fallbacks_of(module) or {}).items()
    ]
    found = calls(trace)
    steps = tuple(_kept(step) for step in details(compiled)["steps"])
    tell("profile", f"{len(found)} calls of {len(steps)} steps")
    return Profile(
        str(path),
        device_name(problem.device),
        problem.precision,
        len(found),
        statistics.median(time for time, _ in found),
        tuple(spent(found, steps)),
        steps,
        limits,
        tuple(notices),
        trace,
    )


def _kept(step: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "kind", "ops", "call", "kernels", "bytes", "flops", "model_us", "launches")
    return {name: step[name] for name in names}


# ---- running --------------------------------------------------------------------------------


def _trace(
    module: nn.Module, sets: list[Inputs], count: int, device: torch.device
) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.no_grad():
        for k in range(WARMUPS):
            forward(module, sets[k % len(sets)])
        with quiet_stderr(), torch_profile(activities=activities, acc_events=True) as recorded:
            for k in range(count):
                with record_function(CALL):
                    forward(module, sets[k % len(sets)])
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
    return exported(recorded)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Ranges:
    """Compiled kernels, each inside of a range of the profiler, which begins when it is told of."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.range: Any = None

    def begin(self, names: tuple[str, ...]) -> None:
        self.end()
        self.range = torch.profiler.record_function(names[0])
        self.range.__enter__()

    def end(self) -> None:
        if self.range is not None:
            self.range.__exit__(None, None, None)
            self.range = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.compiled, name)
        if not name.startswith((LAUNCH, RUN)):
            return found

        def run(*given: Any) -> Any:
            try:
                return found(*given)
            finally:
                self.end()

        return run


def _noted(module: nn.Module) -> bool:
    """Put a range around every launch of a ModelNew; False if it has no launches to be found."""
    space = vars(type(module))["forward"].__globals__.values()
    library = next((v for v in space if hasattr(v, "compiled") and hasattr(v, "watchers")), None)
    if library is None:
        return False
    if not isinstance(library.compiled, _Ranges):
        library.compiled = _Ranges(library.compiled)
        getattr(library, "prepared", {}).clear()
        library.watchers.append(library.compiled.begin)
    return True


# ---- a trace for Perfetto -------------------------------------------------------------------


def with_predictions(found: Profile) -> dict[str, Any]:
    """The trace, and a track beside it on which each step of a call takes what was predicted."""
    assert found.trace is not None
    events = list(found.trace["traceEvents"])
    begins = [e["ts"] for e in events if e.get("name") == CALL and e.get("ph") == "X"]
    at = float(min(begins, default=0.0))
    track = {"pid": "kernelwright", "tid": "predicted, one call"}
    for step in found.steps:
        us, basis = predicted(step, found.ceilings)
        if us is not None:
            events.append(
                {
                    "ph": "X",
                    "cat": "predicted",
                    "name": step["name"],
                    "ts": at,
                    "dur": us,
                    **track,
                    "args": {"why": basis},
                }
            )
            at += us
    return {**found.trace, "traceEvents": events}
