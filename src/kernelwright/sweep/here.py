"""Tasks on this machine: as many at a time as are asked for, rows as they end.

The one idea: a task is taken from the corpus when there is room for it, so that what is in memory
does not grow with how many there are.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from kernelwright.sweep.child import Place, attempt, let_go
from kernelwright.sweep.devices import VISIBLE, gpus
from kernelwright.sweep.task import Row, Task

CORES = len(os.sched_getaffinity(0))


def rows_here(tasks: Iterable[Task], place: Place, jobs: int, use_gpus: bool) -> Iterator[Row]:
    """Results in the order in which tasks end."""
    visible = gpus() if use_gpus else []
    turns = itertools.cycle(visible) if visible else None
    local = threading.local()

    def one(task: Task) -> Row:
        """Each thread keeps to one GPU, so that they are used alike."""
        if turns is not None and not hasattr(local, "gpu"):
            local.gpu = next(turns)
        own = {VISIBLE: local.gpu} if turns is not None else {}
        return attempt(task, replace(place, environment={**place.environment, **own}))

    waiting = iter(tasks)
    pool = ThreadPoolExecutor(jobs)
    running: set[Future[Row]] = set()
    try:
        running = {pool.submit(one, task) for task in itertools.islice(waiting, jobs)}
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(one, task) for task in itertools.islice(waiting, len(ended))}
            for future in ended:
                yield future.result()
    finally:
        for future in running:
            future.cancel()
        let_go()
        pool.shutdown()
