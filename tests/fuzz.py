"""Random models: `PYTHONPATH=src python tests/fuzz.py --cases 5000 --backend cpu --seed 0`.

    --level planned    the passes and the planner's programs, run by torch (fast; no compiler)
    --level compiled   built, many to a library, and run: outputs, buffers, a training step
    --seeds 7 8 9      these models, and no others: what an earlier run found wrong
    --keep FOLDER      failures, shrunk, become model files there (tests/fuzzed: they are tests)

A seed is a model. What fails is printed with its seed; the exit code is 1 if anything did.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from fuzzing.choices import Seeded
from fuzzing.compiled import RIGHT, UNSUPPORTED, WRONG, Verdict, describe, judge_all, run_eager
from fuzzing.grammar import GRAMMAR
from fuzzing.planned import check_planned
from fuzzing.recipe import Recipe
from fuzzing.shrink import shrunk
from fuzzing.writer import SMALL, WIDE, Writer

T = TypeVar("T")
DTYPES = ("float32", "float32", "float32", "float16", "bfloat16")


def recipe_of(seed: int, level: str, backend: str) -> Recipe:
    """The model of a seed."""
    if level == "planned":
        return Writer(Seeded(seed), GRAMMAR).write()
    limits = WIDE if backend == "cuda" and seed % 3 else SMALL
    return Writer(Seeded(seed), GRAMMAR, limits, DTYPES).write()


def judged(recipes: dict[str, Recipe], level: str, backend: str) -> dict[str, Verdict]:
    if level == "planned":
        return {name: _planned(recipe) for name, recipe in recipes.items()}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return judge_all(recipes, backend, Path(folder))


def _planned(recipe: Recipe) -> Verdict:
    try:
        return Verdict(RIGHT if check_planned(recipe) else UNSUPPORTED)
    except Exception as error:
        return Verdict(WRONG, describe(error))


def _share(seeds: Sequence[int], level: str, backend: str) -> dict[int, Verdict]:
    """What one worker does."""
    faulthandler.enable()
    gc.freeze()  # what is there now, torch above all, is not looked through after every model
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # eager's own error is the measure, so it must be small
    logging.disable(logging.WARNING)
    recipes = {f"seed{seed}": recipe_of(seed, level, backend) for seed in seeds}
    return {int(n[4:]): v for n, v in judged(recipes, level, backend).items()}


def smallest(seed: int, level: str, backend: str) -> tuple[Recipe, str]:
    """The shrunk model of a seed that fails, and what is wrong with it."""
    recipe = recipe_of(seed, level, backend)

    def complaints(recipes: Sequence[Recipe]) -> list[str]:
        verdicts = judged({f"try{i}": r for i, r in enumerate(recipes)}, level, backend)
        return [_kind(verdicts[f"try{i}"]) for i in range(len(recipes))]

    (first,) = complaints([recipe])

    def failing(recipes: Sequence[Recipe]) -> list[bool]:
        return [complaint == first for complaint in complaints(recipes)]

    small = shrunk(recipe, failing)
    why = judged({"small": small}, level, backend)["small"].why
    return replace(small, note=f"Found by tests/fuzz.py, seed {seed}, {level} on {backend}."), why


def _kind(verdict: Verdict) -> str:
    """What is wrong, without the numbers: another mistake is not the same one made smaller."""
    return verdict.kind + re.sub(
        r"(batch|result)? ?[-\d.e]+.*|, .*", "", verdict.why.split(": ", 1)[-1]
    )


def groups(seeds: Iterable[int], size: int) -> list[list[int]]:
    listed = list(seeds)
    return [listed[i : i + size] for i in range(0, len(listed), size)]


def every_share(
    shares: list[list[int]], level: str, backend: str, workers: int, late: float | None
) -> Iterator[dict[int, Verdict]]:
    """The verdicts of each share as they come, until it is late.

    A worker that dies takes the others with it. Then the models that it may have been at are judged
    one by one, so that the one which kills is known, and the rest goes on.
    """
    while shares:
        pool = _pool(workers)
        work = {pool.submit(_share, share, level, backend): share for share in shares}
        try:
            for done in as_completed(work, None if late is None else late - time.monotonic()):
                verdicts = _verdicts(done, work[done])
                shares = [share for share in shares if share is not work[done]]
                yield verdicts
        except BrokenProcessPool:
            for seed in (seed for share in shares[: workers + 1] for seed in share):
                yield {seed: _alone(seed, level, backend)}
            shares = shares[workers + 1 :]
        except TimeoutError:
            for process in list(pool._processes.values()):
                process.kill()
            return
        finally:
            pool.shutdown(cancel_futures=True)


def _verdicts(done: Future[dict[int, Verdict]], share: list[int]) -> dict[int, Verdict]:
    try:
        return done.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return {seed: Verdict(WRONG, describe(error)) for seed in share}


def _alone(seed: int, level: str, backend: str) -> Verdict:
    """Eager may be the one that dies: then there is nothing to compare with."""
    found = _in_a_process(_share, [seed], level, backend)
    if found is not None:
        return found[seed]
    if level == "compiled" and _in_a_process(_eager, seed, level, backend) is None:
        return Verdict(UNSUPPORTED, "eager: the process died")
    return Verdict(WRONG, "the process died")


def _eager(seed: int, level: str, backend: str) -> bool:
    return run_eager(recipe_of(seed, level, backend), backend)


def _in_a_process(function: Callable[..., T], *args: Any) -> T | None:
    """What it returns, or None if its process dies."""
    pool = _pool(1)
    try:
        return pool.submit(function, *args).result()
    except BrokenProcessPool:
        return None
    finally:
        pool.shutdown()


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


class Tally:
    """What came of the models so far; failures are printed as they come."""

    def __init__(self) -> None:
        self.counts, self.why_not, self.causes = Counter[str](), Counter[str](), Counter[str]()
        self.kernels = 0
        self.failures: dict[int, str] = {}

    def add(self, verdicts: dict[int, Verdict]) -> None:
        for seed, verdict in verdicts.items():
            self.counts[verdict.kind] += 1
            self.kernels += verdict.kernels
            self.causes.update(verdict.fallbacks)
            if verdict.kind == UNSUPPORTED:
                self.why_not[verdict.why[:110]] += 1
            if verdict.kind == WRONG:
                self.failures[seed] = verdict.why
                print(f"seed {seed}: {verdict.why[:400]}", flush=True)

    def __str__(self) -> str:
        lines = [
            f"  {title} {count}: {text}"
            for title, table in (("unsupported", self.why_not), ("fell back", self.causes))
            for text, count in table.most_common(8)
        ]
        total = f"{sum(self.counts.values())} models: {dict(self.counts)}, {self.kernels} kernels"
        return "\n".join([*lines, total])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", help="judge these instead")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--level", choices=("planned", "compiled"), default="compiled")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--together", type=int, default=32, help="models in one build")
    parser.add_argument("--keep", type=Path, help="shrink failures, and keep them here")
    parser.add_argument("--most", type=int, default=10, help="failures to shrink")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    options = parser.parse_args()
    start, tally = time.monotonic(), Tally()
    seeds = options.seeds or range(options.seed, options.seed + options.cases)
    shares = groups(seeds, options.together)
    late = start + options.seconds if options.seconds else None
    for verdicts in every_share(shares, options.level, options.backend, options.workers, late):
        tally.add(verdicts)
        print(f"{sum(tally.counts.values())} of {len(seeds)}", file=sys.stderr, flush=True)
    failures, left = tally.failures, len(seeds) - sum(tally.counts.values())
    took = time.monotonic() - start
    print(f"{tally} in {took:.0f} s{', out of time' if left else ''}", flush=True)
    if options.keep is not None:
        for seed in list(failures)[: options.most]:
            small, why = smallest(seed, options.level, options.backend)
            path = options.keep / f"seed_{seed}_{options.level}_{options.backend}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(small.text)
            print(f"{path}: {why[:300]}", flush=True)
    return 1 if failures or left else 0


if __name__ == "__main__":
    sys.exit(main())
