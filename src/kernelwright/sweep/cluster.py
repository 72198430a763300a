"""Tasks on Ray: on the nodes of a cluster, or on a local one that is started for it.

In: tasks. Out: rows as they end, of each task one. A task asks for CPUs and for a share of a GPU,
so that some compile while one of them times. Ray runs those of a lost worker or node again, at most
so many times; then the row says that it was lost. A bounded number is in flight, and what is not is
not read yet: the driver's memory does not grow with the corpus.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kernelwright.errors import InputError
from kernelwright.sweep.child import Place, attempt
from kernelwright.sweep.task import Row, Task, row_of

LOCAL = "local"
AHEAD = 2  # tasks in flight for each that the cluster can run at once
MOST_AHEAD = 4096
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Ask:
    """What a task asks of the cluster, and how often it is tried."""

    address: str = LOCAL
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    jobs: int | None = None  # at once; None is what the cluster has room for


def rows_on_ray(tasks: Iterable[Task], place: Place, ask: Ask) -> Iterator[Row]:
    """Results in the order in which tasks end, whatever happens to workers and nodes."""
    ray = imported()
    with _connected(ray, ask):
        remote = ray.remote(
            num_cpus=ask.cpus,
            num_gpus=ask.gpus,
            max_retries=ask.retries,
            retry_exceptions=False,
            max_calls=0,
        )(_on_worker)
        shared = ray.put(place)
        waiting = iter(tasks)
        running: dict[Any, Task] = {}

        def fill() -> None:
            for task in itertools.islice(waiting, max(0, room(ray, ask) - len(running))):
                running[remote.remote(task.to_json(), shared)] = task

        fill()
        while running:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=WAIT_SECONDS)
            for reference in ended:
                yield _row(ray, reference, running.pop(reference), ask)
            del ended
            fill()


def imported() -> Any:
    """Ray, which is an extra of the package."""
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "--on ray needs Ray; install it with pip install 'kernelwright[cluster]'."
        ) from error
    return ray


def room(ray: Any, ask: Ask) -> int:
    """How many tasks are given to the cluster: nodes come and go, so it is asked again."""
    if ask.jobs is not None:
        return ask.jobs
    total = ray.cluster_resources()
    fits = [total.get("CPU", 0.0) / ask.cpus] if ask.cpus else []
    fits += [total.get("GPU", 0.0) / ask.gpus] if ask.gpus else []
    return max(1, min(MOST_AHEAD, int(AHEAD * min(fits, default=1.0))))


def _on_worker(task: dict[str, Any], place: Place) -> Row:
    """In a worker of Ray, which runs nothing of the task either: the same guard and child."""
    return {**attempt(Task.from_json(task), place), "node": os.uname().nodename}


def _row(ray: Any, reference: Any, task: Task, ask: Ask) -> Row:
    try:
        row: Row = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return row_of(task, "bug", f"The worker failed: {_first_line(error)}")
    except ray.exceptions.RayError as error:
        tried = ask.retries + 1
        return row_of(task, "lost", f"Its worker was lost {tried} times: {_first_line(error)}")
    return row


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300] if lines else ''}"


class _connected:
    """A running cluster, or one of its own that ends with the sweep."""

    def __init__(self, ray: Any, ask: Ask) -> None:
        self.ray, self.ask = ray, ask
        self.ours = not ray.is_initialized()

    def __enter__(self) -> None:
        if not self.ours:
            return
        own = self.ask.address == LOCAL
        options: dict[str, Any] = {}
        if own:  # on nodes of somebody's cluster the package is installed
            paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
            options["runtime_env"] = {"env_vars": {"PYTHONPATH": paths}}
            options["include_dashboard"] = False
        if own and self.ask.jobs is not None:
            options["num_cpus"] = max(1, round(self.ask.jobs * self.ask.cpus))
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self.ray.init(
                address="local" if own else self.ask.address,
                log_to_driver=False,
                logging_level="ERROR",
                **options,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"No Ray cluster answers at {self.ask.address}: {_first_line(error)}. Start one "
                "with ray start --head, or leave --address out."
            ) from error

    def __exit__(self, *error: object) -> None:
        if self.ours:
            self.ray.shutdown()
