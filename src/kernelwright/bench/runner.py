"""bench(): a model file and a candidate file in, Timings out; and the same for live modules.

The one idea: the variants take turns (turns.py), each round on another set of inputs and with a
flushed cache, so that drift of the machine hits all of them alike. Files are timed in processes of
their own (isolated.py), live modules where they are.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from kernelwright.bench import neighbours, roofline
from kernelwright.bench.aside import SYNCHRONOUS, peak_bytes, synchronous_ms
from kernelwright.bench.clock import Clock, Reading, device_name, make_clock
from kernelwright.bench.context import matmul_precision, quiet_warnings, silence
from kernelwright.bench.inputs import InputSets, make_sets
from kernelwright.bench.isolated import Isolated, disbelieved, rows_of, wanted, wanted_steps
from kernelwright.bench.last_look import last_look
from kernelwright.bench.stand import MODES
from kernelwright.bench.steps import STEP, prepare_step
from kernelwright.bench.timings import (
    BASELINES,
    CANDIDATE,
    CANDIDATE_GRAPH,
    EAGER_GRAPH,
    Timing,
    Timings,
)
from kernelwright.bench.turns import turns
from kernelwright.bench.variants import (
    Variant,
    brief,
    candidate_failure,
    direct,
    prepare_candidate,
    prepare_compiled,
    prepare_graph,
    warm,
)
from kernelwright.errors import InputError, VerificationError
from kernelwright.problem import Problem
from kernelwright.verify.candidate import fallbacks_of
from kernelwright.verify.certificate import Finding
from kernelwright.verify.processes import Server, unreadable
from kernelwright.verify.session import job_for
from kernelwright.verify.side import Broken, Raised
from kernelwright.verify.subject import Reference, Subject

Progress = Callable[[str, str], None]
MIN_ROUNDS, MAX_ROUNDS = 5, 200


def bench(
    model_path: str | Path,
    candidate_path: str | Path,
    device: str = "auto",
    precision: str = "current",
    *,
    batch: int | None = None,
    baselines: Sequence[str] | None = None,
    seconds: float = 3.0,
    progress: Progress | None = None,
    verify_after: bool = True,
    training: bool | None = None,
    train: bool = False,
    step_seconds: float | None = None,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Timings:
    """Time the candidate against what one would run otherwise, all at the same precision.

    With `train` the model is in train mode, and a training step (forward, loss, backward) is timed
    besides. `step_seconds` is the time for each variant of a step, by default `seconds`; given
    without `train`, steps are timed where the model is in train mode anyway.
    `baselines` are eager, compile and max-autotune unless told; max-autotune on the CPU only when
    asked for by name. `seconds` is the time to spend on each variant once it is warm, overrun where
    five rounds take longer. `alone` is held while the clocks run, and not while variants are built.
    """
    check_baselines(baselines)
    job = job_for(model_path, candidate_path, device, precision, train or training)
    warnings = neighbours.before(torch.device(job.device))
    started = time.perf_counter()
    with unreadable(), Server() as server:
        try:
            reference = Reference(job, server)
            subject = Subject(job, server, reference)
        except Broken as error:
            raise VerificationError(
                f"The files could not be loaded: {error}. {error.log}"
            ) from error
        except Raised as error:
            raise InputError(f"ModelNew of {candidate_path} cannot be used: {error}") from error
        try:
            stands = Isolated(subject)
            stands.ready_s[CANDIDATE] = time.perf_counter() - started
            each = seconds if step_seconds is None else step_seconds
            wanted_of_steps = each if train or (step_seconds and subject.training) else 0.0
            timings = _time_apart(
                stands, batch, baselines, seconds, progress, verify_after, wanted_of_steps, alone
            )
            return replace(timings, warnings=(*warnings, *timings.warnings))
        finally:
            subject.close()
            reference.close()


def _time_apart(
    stands: Isolated,
    batch: int | None,
    baselines: Sequence[str] | None,
    seconds: float,
    progress: Progress | None,
    verify_after: bool,
    step_seconds: float,
    alone: Callable[[], AbstractContextManager[None]],
) -> Timings:
    """All variants prepared, timed, and judged by what they gave while they were timed."""
    tell = progress or (lambda name, summary: None)
    job, subject = stands.subject.job, stands.subject
    tell("load", f"{Path(job.model).stem} on {job.device}, float32 matmul {job.precision}")
    _require_weights(subject)
    sets = stands.sets(batch)
    work, level = stands.work()
    tell("count", f"{work.flops / 1e9:.1f} GFLOP, {work.bytes / 1e6:.1f} MB at the least")
    prepared: dict[str, Timing | None] = {}
    on_gpu = subject.device.type == "cuda"
    for name in wanted(baselines, on_gpu, job.precision):
        if name == "max-autotune" and not on_gpu and baselines is None:
            prepared[name] = Timing(name, note="not run on the CPU unless asked for")
        else:
            prepared[name] = stands.prepare(name)
        row = prepared[name]
        tell(name, "ready" if row is None else row.note)
    clocks = neighbours.Clocks(subject.device)
    with alone():
        blocks = stands.measure([n for n, row in prepared.items() if row is None], seconds)
    warnings = clocks.told()
    tell("time", f"{len(blocks.readings[CANDIDATE])} rounds of {len(blocks.readings) - 1} variants")
    problems = [f"the candidate fell back {n} times ({why})" for why, n in blocks.fell.items()]
    findings = stands.judge(sets, blocks) if verify_after else []
    problems += [f.detail for f in findings if f.passed is False]
    if verify_after:
        tell("verify", findings[0].detail if not problems else problems[0])
    floor = roofline.floor_at(work, level, str(stands.about["device"]))
    rows, impossible = refuse_impossible(rows_of(blocks, prepared), floor)
    problems = list(dict.fromkeys([*problems, *impossible, *disbelieved(blocks)]))
    steps = _time_steps(stands, baselines, step_seconds, tell) if step_seconds else ()
    return Timings(
        model=job.model,
        candidate=job.candidate,
        device=str(stands.about["device"]),
        torch=torch.__version__,
        precision=job.precision,
        rows=tuple(stands.beside(row, row.name) for row in rows),
        floor_ms=floor.ms,
        floor_why=floor.why,
        verified=_verdict(findings, problems),
        problems=tuple(problems),
        training=steps,
        warnings=tuple(warnings),
        conditions={
            **described_sets(sets),
            "mode": "train" if subject.training else "eval",
            "conv_tf32": job.conv_tf32,
            "flushed_bytes": stands.about["flush_bytes"],
            "clock": f"{stands.about['clock']}, held against the judge's",
            "threads": stands.about["threads"],
            "degenerate": stands.degenerate(),
            "flops": work.flops,
            "bytes": work.bytes,
        },
    )


def _time_steps(
    stands: Isolated, baselines: Sequence[str] | None, seconds: float, tell: Progress
) -> tuple[Timing, ...]:
    """Training steps of eager, torch.compile and the candidate, in turns."""
    prepared = {name: stands.prepare(name) for name in wanted_steps(baselines)}
    ready = [name for name, row in prepared.items() if row is None]
    if not ready:
        return tuple(named_plainly(row) for row in prepared.values() if row is not None)
    blocks = stands.measure(ready, seconds)
    rows = rows_of(blocks, prepared)
    doubts = disbelieved(blocks)
    tell("train", f"{len(blocks.readings[ready[0]])} rounds of {len(ready)} training steps")
    found = [named_plainly(stands.beside(row, row.name)) for row in rows]
    return tuple(replace(r, note=doubts[0]) if doubts and r.name == CANDIDATE else r for r in found)


def named_plainly(row: Timing) -> Timing:
    """`eager step` is `eager` among steps."""
    return replace(row, name=row.name.removesuffix(STEP))


def _require_weights(subject: Subject) -> None:
    """A candidate that does not take the model's weights is another model."""
    state = subject.reference.about["state_dict"]
    try:
        subject.side.ask("load strictly", state=state)
    except Raised as error:
        path = subject.job.candidate
        raise InputError(
            f"ModelNew of {path} does not take the model's weights: {error}"
        ) from error


def check_baselines(baselines: Sequence[str] | None) -> None:
    unknown = set(baselines or ()) - set(BASELINES)
    if unknown:
        raise InputError(f"Unknown baseline {sorted(unknown)[0]!r}; use {', '.join(BASELINES)}.")


@dataclass(frozen=True)
class Timed:
    """A problem and how to load its candidate, with the names that both are known by."""

    problem: Problem
    load: Callable[[], nn.Module]
    model: str
    candidate: str


def time_subject(
    subject: Timed,
    batch: int | None = None,
    baselines: Sequence[str] | None = None,
    seconds: float = 3.0,
    progress: Progress | None = None,
    verify_after: bool = True,
    train: bool = False,
) -> Timings:
    """All of bench but where the model and the candidate come from."""
    tell = progress or (lambda name, summary: None)
    problem = subject.problem
    warnings = neighbours.before(problem.device)
    with matmul_precision(problem.precision), torch.no_grad(), quiet_warnings():
        candidate = subject.load()
        tell("load", str(problem))
        clock = make_clock(problem.device)
        sets = make_sets(problem.inputs, batch, clock.flush_bytes, problem.kwargs)
        work = count_work(problem, sets)
        tell("count", f"{work.flops / 1e9:.1f} GFLOP, {work.bytes / 1e6:.1f} MB at the least")
        prepared = prepare(problem, candidate, sets, baselines, tell)
        before = fallbacks_of(candidate) or Counter()
        clocks = neighbours.Clocks(problem.device)
        rows = measure(prepared, clock, seconds, tell)
        warnings += clocks.told()
        rows = beside(rows, prepared, clock, problem.device)
        steps = prepare_steps(problem, candidate, sets, baselines) if train else []
        timed = measure(steps, clock, seconds, tell) if train else ()
        timed = tuple(map(named_plainly, beside(timed, steps, clock, problem.device)))
        fell_back = (fallbacks_of(candidate) or Counter()) - before
        problems = [f"the candidate fell back {n} times ({why})" for why, n in fell_back.items()]
        findings = check(problem, candidate, sets) if verify_after else []
        problems += [f.detail for f in findings if f.passed is False]
        if verify_after:
            tell("verify", findings[0].detail if not problems else problems[0])
    name = device_name(problem.device)
    floor = roofline.floor(problem, work, name)
    rows, impossible = refuse_impossible(rows, floor)
    problems = list(dict.fromkeys(problems + impossible))
    return Timings(
        model=subject.model,
        candidate=subject.candidate,
        device=name,
        torch=torch.__version__,
        precision=problem.precision,
        rows=rows,
        floor_ms=floor.ms,
        floor_why=floor.why,
        verified=_verdict(findings, problems),
        problems=tuple(problems),
        training=timed,
        warnings=tuple(warnings),
        conditions=conditions(problem, sets, clock, work),
    )


def count_work(problem: Problem, sets: InputSets) -> roofline.Work:
    try:
        return roofline.count_work(problem, problem.module, sets[0])
    except Exception as error:
        raise InputError(f"The model's own forward raised {brief(error)}.") from error


def prepare(
    problem: Problem,
    candidate: nn.Module,
    sets: InputSets,
    baselines: Sequence[str] | None,
    tell: Progress,
) -> list[Variant | Timing]:
    """Every variant, warm, in the order of the table; what cannot be made is a row already."""
    on_gpu = problem.device.type == "cuda"
    warmups = 6 if on_gpu else 2
    ready: list[Variant | Timing] = []
    torch.compiler.reset()
    for name in BASELINES if baselines is None else baselines:
        if name == "eager":
            eager = direct(name, problem.module, sets)
            warm(eager, warmups)
            ready.append(eager)
        elif name == "max-autotune" and not on_gpu and baselines is None:
            ready.append(Timing(name, note="not run on the CPU unless asked for"))
        else:
            with silence():
                ready.append(prepare_compiled(name, MODES[name], problem.module, sets, warmups))
        made = ready[-1]
        tell(name, made.note if isinstance(made, Timing) else "ready")
    ready.append(prepare_candidate(CANDIDATE, candidate, sets, warmups))
    tell(CANDIDATE, "ready")
    if on_gpu:
        ready.append(prepare_graph(EAGER_GRAPH, problem.module, sets))
        ready.append(prepare_graph(CANDIDATE_GRAPH, candidate, sets))
    return ready


def prepare_steps(
    problem: Problem, candidate: nn.Module, sets: InputSets, baselines: Sequence[str] | None
) -> list[Variant | Timing]:
    """Training steps of eager, torch.compile and the candidate, warm."""
    warmups = 6 if problem.device.type == "cuda" else 2
    ready = []
    for name in wanted_steps(baselines):
        module = candidate if name == CANDIDATE + STEP else problem.module
        run = module
        if (mode := MODES.get(name.removesuffix(STEP))) is not None:
            torch.compiler.reset()
            run = cast(nn.Module, torch.compile(module, mode=mode, dynamic=False))
        ready.append(prepare_step(name, module, run, sets, warmups))
    return ready


def beside(
    rows: tuple[Timing, ...],
    prepared: list[Variant | Timing],
    clock: Clock,
    device: torch.device,
) -> tuple[Timing, ...]:
    """The rows with a call that is waited for and with the peak of memory; graphs have theirs."""
    calls = {v.name: v.calls[0] for v in prepared if isinstance(v, Variant)}
    found = []
    for row in rows:
        if row.median_ms is not None and row.name in calls:
            count = SYNCHRONOUS if device.type == "cuda" else 0
            taken = [synchronous_ms(calls[row.name], clock) for _ in range(count)]
            own = row.name not in (EAGER_GRAPH, CANDIDATE_GRAPH)
            peak = peak_bytes(calls[row.name], device) if own else None
            call = statistics.median(taken) if taken else row.median_ms
            row = replace(row, call_ms=call, peak_bytes=peak)
        found.append(row)
    return tuple(found)


def measure(
    prepared: list[Variant | Timing],
    clock: Clock,
    seconds: float,
    tell: Progress,
) -> tuple[Timing, ...]:
    """Rounds of one call for each variant, as many as the time allows, at least five."""
    variants = [v for v in prepared if isinstance(v, Variant)]
    started = time.perf_counter()
    one_round(variants, 0, clock)
    each = time.perf_counter() - started
    wanted = int(seconds * len(variants) / max(each, 1e-9))
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, wanted))
    try:
        readings = [one_round(variants, k, clock) for k in range(1, rounds + 1)]
    except Exception as error:
        raise candidate_failure(error) from error
    tell("time", f"{rounds} rounds of {len(variants)} variants")
    timed = {
        variant.name: Timing.of(
            variant.name, [r[i][0] for r in readings], [r[i][1] for r in readings]
        )
        for i, variant in enumerate(variants)
    }
    return tuple(p if isinstance(p, Timing) else timed[p.name] for p in prepared)


def one_round(variants: list[Variant], k: int, clock: Clock) -> list[tuple[float, float]]:
    """One timed call of each variant, on the k-th set of inputs.

    Each round begins with another variant: the first one finds an idle device, and its host has
    no queue to hide behind.
    """
    readings: dict[int, Reading] = {}
    for turn in turns(len(variants), k):
        calls = variants[turn].calls
        readings[turn] = clock.time(calls[k % len(calls)])
    clock.finish()
    return [(readings[i].device_ms(), readings[i].host_ms) for i in range(len(variants))]


def check(problem: Problem, candidate: nn.Module, sets: InputSets) -> list[Finding]:
    try:
        return last_look(problem, candidate, sets)
    except Exception as error:
        detail = f"the result could not be checked in float64: {brief(error)}"
        return [Finding(False, detail)]


def _verdict(findings: list[Finding], problems: list[str]) -> bool | None:
    """None where nobody looked, or where nothing could be told."""
    if problems:
        return False
    return True if findings and all(f.passed for f in findings) else None


def refuse_impossible(
    rows: tuple[Timing, ...], floor: roofline.Floor
) -> tuple[tuple[Timing, ...], list[str]]:
    """Mark rows of the candidate that beat the floor: they cannot be what they claim to be."""
    if floor.ms is None:
        return rows, []
    ours = (CANDIDATE, CANDIDATE_GRAPH)
    low = [r for r in rows if r.name in ours and r.median_ms is not None and r.median_ms < floor.ms]
    marked = tuple(
        replace(r, note=f"impossible: under the floor of {floor.ms:.4f} ms") if r in low else r
        for r in rows
    )
    told = f"it takes {floor.ms:.4f} ms at the least ({floor.why}) when done as the model says"
    return marked, [f"{r.name} at {r.median_ms:.4f} ms is impossible: {told}" for r in low]


def conditions(
    problem: Problem, sets: InputSets, clock: Clock, work: roofline.Work
) -> dict[str, Any]:
    return {
        **described_sets(sets),
        "mode": "train" if problem.training else "eval",
        "conv_tf32": problem.conv_tf32,
        "flushed_bytes": clock.flush_bytes,
        "clock": clock.what,
        "threads": torch.get_num_threads(),
        "flops": work.flops,
        "bytes": work.bytes,
    }


def described_sets(sets: InputSets) -> dict[str, Any]:
    first = roofline.tensors(sets[0])[0]
    return {
        "input": list(first.shape),
        "dtype": str(first.dtype).removeprefix("torch."),
        "input_sets": len(sets),
    }
