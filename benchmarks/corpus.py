"""The corpus: chains led by a convolution or a Linear, each certified, timed and held to its floor.

    PYTHONPATH=src python3 benchmarks/corpus.py --resume

Each chain and mode is a process of its own (children.py) that compiles, certifies (a quick run of
verify), and times ours beside eager and torch.compile, default and max-autotune, in turns. Its
floor is the larger of two times on the machine's peaks (bench/roofline.py):

    floor = max(flops of the model's contractions / rate of its precision,
                bytes of inputs, parameters and outputs, once each / bandwidth)

A chain is a collapse where algebra leaves its plan fewer flops of contractions than the model has:
its floor counts the flops of the plan then, and its speed is reported apart. What is left of it is
mostly the input, so it is also held to one reading of all inputs, `torch.sum` of each, in the same
turns. A chain that is not certified, or that fell back to the original while it was timed, counts
in no mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpus_files
import torch
from children import (
    Job,
    Record,
    add_options,
    compile_stage,
    device_lock,
    go_through,
    known,
    run_all,
    verify_stage,
)
from corpus_chart import write_chart
from measuring import in_turns, kernel_clock, published
from sheet import Sheet, file_stem
from torch.profiler import ProfilerActivity, profile

from kernelwright.bench import roofline
from kernelwright.bench.clock import device_name
from kernelwright.bench.context import matmul_precision, quiet_warnings, silence
from kernelwright.bench.inputs import make_sets
from kernelwright.bench.runner import MODES
from kernelwright.bench.timings import Timing
from kernelwright.bench.variants import Variant, direct, load_candidate, prepare_compiled
from kernelwright.problem import Problem, in_mode, load_problem, resolve_device

HERE = Path(__file__).resolve().parent
BASELINES = ("eager", *MODES)
MOST_APART = 1e-2  # relative, of two results: TF32 has up to 1e-3
COLUMNS = (
    "chain", "mode", "certified", "kernels before", "after", *BASELINES, "ours",
    "/ eager", "/ compile", "/ best", "floor", "over floor",
)  # fmt: skip
SUMMARY = (
    "chains", "count", "certified", "measured", *(f"/ {name}" for name in BASELINES), "/ best",
    "as fast as the best", "over floor",
)  # fmt: skip
READING = "reading"
COLLAPSES = ("chain", "mode", "ours", "inputs read once", "ours / that", "floor", "over floor")
GROUPS: dict[str, Callable[[Record], bool]] = {
    "led by a convolution": lambda r: corpus_files.convolves(r["chain"]),
    "of these, collapses": lambda r: corpus_files.convolves(r["chain"]) and collapses(r),
    "of these, no collapses": lambda r: corpus_files.convolves(r["chain"]) and not collapses(r),
    "led by a Linear": lambda r: not corpus_files.convolves(r["chain"]),
}


# ---- the child: one chain, one mode --------------------------------------------------------------


def child(job: Job) -> None:
    size, _, batch = job["size"].partition(" at batch ")
    folder = Path(job["folder"])
    source = corpus_files.write(job["chain"], size == "small", folder, int(batch or 0))
    last = warm_stage if job["ahead"] else time_stage
    go_through(job, source, (compile_stage, verify_stage, last))


def warm_stage(job: Job, source: Path, emitted: Path) -> Record:
    """Build what is compiled at the first call, into the caches that all children share."""
    training = job["mode"] == "train"
    problem = in_mode(load_problem(source, job["device"], job["precision"]), training)
    with matmul_precision(problem.precision), torch.no_grad(), quiet_warnings():
        load_candidate(problem, emitted)(*problem.inputs)
        sets = make_sets(problem.inputs, None, 0)[:1]
        for name in modes_of(job):
            compiled(name, problem, sets)
    return {}


def modes_of(job: Job) -> list[str]:
    """The modes of torch.compile that are asked for."""
    wanted = [name for name in MODES if job["compile"]]
    return [name for name in wanted if job["autotune"] or name != "max-autotune"]


def time_stage(job: Job, source: Path, emitted: Path) -> Record:
    training = job["mode"] == "train"
    problem = in_mode(load_problem(source, job["device"], job["precision"]), training)
    candidate = load_candidate(problem, emitted)
    clock = kernel_clock(problem.device)
    sets = make_sets(problem.inputs, None, clock.flush_bytes)
    lock = Path(job["lock"])
    with matmul_precision(problem.precision), torch.no_grad(), quiet_warnings():
        with device_lock(lock, alone=False):
            work = roofline.count_work(problem, problem.module, sets[0], saved=1.0)
            apart = distance(problem.module, candidate, sets[0])
            ways = [direct("eager", problem.module, sets)]
            ways += [direct("ours", candidate, sets)]
            ways += [direct(READING, read_all, sets)]
            made = [compiled(name, problem, sets) for name in modes_of(job)]
            ways += [way for way in made if isinstance(way, Variant)]
        with device_lock(lock, alone=True):
            times = in_turns(ways, clock, job["rounds"])
            launched = {
                way.name: kernels_launched(way, problem.device)
                for way in ways
                if way.name != READING
            }
    reading = times.pop(READING)
    return {
        "apart": apart,
        "reading_ms": reading.ms,
        "ms": {name: taken.ms for name, taken in times.items()},
        "launched": {name: count for name, count in launched.items() if count is not None},
        "notes": {row.name: row.note for row in made if isinstance(row, Timing)},
        "fallbacks": dict(candidate.fallbacks),
        **floors(problem, work),
    }


def read_all(*inputs: torch.Tensor) -> list[torch.Tensor]:
    return [x.sum() for x in inputs]


def distance(eager: Any, ours: Any, inputs: Any) -> float:
    """How far apart both results are; no certificate, but nobody times what is plainly wrong."""
    found = []
    for module in (eager, ours):
        torch.manual_seed(0)
        found.append(module(*inputs.args, **inputs.kwargs).double())
    apart = float((found[1] - found[0]).norm() / found[0].norm())
    if not apart <= MOST_APART:
        raise RuntimeError(f"The results of eager and ours are {apart:.1e} apart.")
    return apart


def compiled(name: str, problem: Problem, sets: Any) -> Variant | Timing:
    """torch.compile in one of its modes; max-autotune takes minutes on a CPU for nothing."""
    if name == "max-autotune" and problem.device.type == "cpu":
        return Timing(name, note="not run on the CPU")
    with silence():
        return prepare_compiled(name, MODES[name], problem.module, sets, warmups=4)


def kernels_launched(way: Variant, device: torch.device) -> int | None:
    """By one call, copies and fills apart; on a CPU nothing counts them."""
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        way.calls[0]()
        torch.cuda.synchronize(device)
    on_device = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_device)


def floors(problem: Problem, work: roofline.Work) -> Record:
    """The floor of the model as it is written, and that of its memory traffic alone."""
    machine = device_name(problem.device)
    whole = roofline.floor(problem, work, machine)
    moved = roofline.floor(problem, dataclasses.replace(work, flops=0.0), machine)
    return {
        "flops": work.flops,
        "bytes": work.bytes,
        "floor_ms": whole.ms,
        "memory_floor_ms": moved.ms,
        "floor_why": whole.why,
    }


# ---- tables --------------------------------------------------------------------------------------


def collapses(record: Record) -> bool:
    return record.get("flops_of_plan", 0) < record.get("flops_of_model", 0)


def floor_of(record: Record) -> float | None:
    """That of the work that is left: a collapse keeps a part of the flops, and all of the bytes."""
    if not record.get("floor_ms"):
        return None
    left = record["flops_of_plan"] / record["flops_of_model"] if collapses(record) else 1.0
    return max(record["floor_ms"] * left, record["memory_floor_ms"])


def best(record: Record) -> float:
    return min(ms for name, ms in record["ms"].items() if name != "ours")


def speedups(record: Record) -> dict[str, float]:
    """Over each baseline and over the best of them."""
    ms = record.get("ms", {})
    if "ours" not in ms:
        return {}
    found = {name: ms[name] / ms["ours"] for name in BASELINES if name in ms}
    floor = floor_of(record)
    return (
        found
        | {"best": best(record) / ms["ours"]}
        | ({"floor": ms["ours"] / floor} if floor else {})
    )


def cells(record: Record) -> list[str]:
    ms, ratio, floor = record.get("ms", {}), speedups(record), floor_of(record)
    launched = record.get("launched", {})
    name = record["chain"] + (" (collapse)" if collapses(record) else "")
    name += " (FELL BACK)" if record.get("fallbacks") else ""
    name += " (FAILED)" if "problem" in record else ""
    row = [name, record["mode"], {True: "yes", False: "NO", None: "-"}[record.get("certified")]]
    row.append(str(launched.get("eager", record.get("operators", "-"))))
    row.append(str(launched.get("ours", record.get("launches", "-"))))
    row += [f"{ms[way]:.3f}" if way in ms else "-" for way in (*BASELINES, "ours")]
    row += [f"{ratio[way]:.2f}x" if way in ratio else "-" for way in ("eager", "compile", "best")]
    row.append(f"{floor:.3f}" if floor else "-")
    row.append(f"{ratio['floor']:.1f}x" if "floor" in ratio else "-")
    return row


def counts(record: Record) -> bool:
    """Whether its times are those of a certified file, or of one that nobody was to certify."""
    ended = "ms" in record and "problem" not in record
    return ended and record.get("certified") is not False and not record["fallbacks"]


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summary(records: Sequence[Record]) -> Sheet:
    """Geometric means and shares for each group of chains."""
    sheet = Sheet("Geometric means", SUMMARY)
    for title, belongs in GROUPS.items():
        mine = [r for r in records if belongs(r)]
        measured = [speedups(r) for r in mine if counts(r)]
        names = (*BASELINES, "best", "floor")
        means = {n: geometric_mean([s[n] for s in measured if n in s]) for n in names}
        faster = sum(s["best"] >= 1 for s in measured)
        certified = sum(r.get("certified") is True for r in mine)
        row = [title, str(len(mine)), str(certified), str(len(measured))]
        row += [f"{means[n]:.2f}x" if means[n] else "-" for n in (*BASELINES, "best")]
        row.append(f"{faster} ({faster / len(measured):.0%})" if measured else "-")
        row.append(f"{means['floor']:.1f}x" if means["floor"] else "-")
        figures = {"count": len(mine), "certified": certified, "measured": len(measured)}
        sheet.add(row, {"chains": title, **figures, "as_fast": faster, "means": means})
    return sheet


def collapsed(records: Sequence[Record]) -> Sheet:
    """The collapses that were timed, beside one reading of their inputs."""
    sheet = Sheet("Collapses, ms", COLLAPSES, left=2)
    for record in filter(collapses, records):
        floor = floor_of(record)
        if "reading_ms" in record and counts(record) and floor:
            ours, reading = record["ms"]["ours"], record["reading_ms"]
            row = [record["chain"], record["mode"], f"{ours:.3f}", f"{reading:.3f}"]
            row += [f"{ours / reading:.2f}x", f"{floor:.3f}", f"{ours / floor:.1f}x"]
            sheet.add(row, {name: record[name] for name in ("chain", "mode", "reading_ms")})
    return sheet


# ---- the parent ----------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_options(parser, limit=240.0, budget=4 * 3600.0)
    parser.add_argument("--results", metavar="DIR", default=str(HERE / "results"))
    parser.add_argument("--small", action="store_true", help="the sizes of the tests")
    parser.add_argument(
        "--batch", type=int, metavar="N", help="other than a chain's own: for a CPU"
    )
    chains = corpus_files.CHAINS
    parser.add_argument("--only", nargs="+", choices=chains, default=chains, metavar="CHAIN")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    if options.child:
        child(options.child)
        return
    device = resolve_device(options.device)
    options.device = str(device)
    size = "small" if options.small else "full"
    size += f" at batch {options.batch}" if options.batch else ""
    few = f"batch-{options.batch}" if options.batch else ""
    parts = ("corpus", "small" * options.small, few, options.precision.removeprefix("highest"))
    options.name = "-".join(part for part in parts if part)
    stem = Path(options.results) / f"{file_stem(device_name(device))}-{options.name}"
    sheet = Sheet(f"Chains at {options.precision}, ms", COLUMNS, left=3)
    for record in known(stem.with_suffix(".json"), sheet.title) if options.resume else []:
        if "ms" in record:
            sheet.add(cells(record), record)
    labels = [
        {"chain": chain, "mode": mode, "size": size}
        for chain in options.only
        for mode in corpus_files.modes(chain)
    ]
    done = [{name: record[name] for name in ("chain", "mode", "size")} for record in sheet.record]
    means, read = summary(sheet.record), collapsed(sheet.record)
    with published(options, device, "The corpus", means, sheet, read) as save:

        def keep() -> None:
            for kept, make in ((means, summary), (read, collapsed)):
                made = make(sheet.record)
                kept.rows, kept.record = made.rows, made.record
            save()
            write_chart(stem.with_suffix(".svg"), chart_rows(sheet.record), device_name(device))

        waiting = [label for label in labels if label not in done]
        run_all(__file__, options, waiting, sheet, cells, keep)


def chart_rows(records: Sequence[Record]) -> list[tuple[str, float, float | None]]:
    """A label, how many times faster than torch.compile ours is, and how many the floor is."""
    rows = []
    for record in records:
        if counts(record) and "compile" in record["ms"]:
            floor, theirs = floor_of(record), record["ms"]["compile"]
            mode = f" ({record['mode']})" if len(corpus_files.modes(record["chain"])) > 1 else ""
            label = record["chain"] + mode
            rows.append((label, theirs / record["ms"]["ours"], theirs / floor if floor else None))
    return rows


if __name__ == "__main__":
    main()
