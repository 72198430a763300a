"""What the command line asks of a sweep: its arguments in, a Corpus and a Plan out."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.sweep.child import Place
from kernelwright.sweep.cluster import Ask
from kernelwright.sweep.corpus import Corpus
from kernelwright.sweep.here import CORES
from kernelwright.sweep.run import Plan
from kernelwright.sweep.task import Limits, Options

GB = 1e9
SHARE = 0.8  # of the machine's memory, for all tasks together
BASELINES = ("eager", "compile", "max-autotune")


def corpus_of(arguments: argparse.Namespace) -> Corpus:
    baselines = tuple(arguments.baselines.split(","))
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise InputError(f"Unknown baseline {unknown[0]!r}; use {', '.join(BASELINES)}.")
    if "eager" not in baselines:
        raise InputError("fast_p is over eager; add eager to --baselines.")
    options = Options(
        device=arguments.device,
        precision=arguments.precision,
        training=arguments.training,
        quick=not arguments.full,
        verify=arguments.verify,
        bench=arguments.bench,
        baselines=baselines,
        seconds=arguments.seconds,
        harness=arguments.harness,
    )
    candidates = Path(arguments.candidates) if arguments.candidates else None
    if candidates is not None and not candidates.is_dir():
        raise InputError(f"There is no folder {candidates}; give the folder of the candidates.")
    return Corpus(Path(arguments.problems), candidates, options)


def plan_of(arguments: argparse.Namespace) -> Plan:
    if arguments.jobs == 0:
        raise InputError("--jobs 0 would run nothing; leave it out, or give 1 or more.")
    memory = arguments.memory * GB if arguments.memory else _memory(arguments.jobs or CORES)
    limits = Limits(arguments.timeout, int(memory), int(arguments.disk * GB))
    return Plan(
        out=Path(arguments.out),
        on=arguments.on,
        jobs=arguments.jobs,
        resume=arguments.resume,
        compare=Path(arguments.compare) if arguments.compare else None,
        ask=Ask(
            arguments.address,
            arguments.cpus_per_task,
            arguments.gpus_per_task,
            arguments.retries,
            arguments.jobs,
        ),
        place=Place(limits, artefacts=arguments.artefacts),
        quiet=arguments.quiet,
    )


def _memory(jobs: int) -> float:
    """The share of this machine that one of so many tasks may have."""
    with open("/proc/meminfo") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemTotal:"))
    return SHARE * kilobytes * 1024 / jobs
