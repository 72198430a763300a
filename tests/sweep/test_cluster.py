"""Sweeps on a real local Ray cluster, in which workers and a node are killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pretending import LIMITS, place, pretend, started, statuses, write_problems
from test_drivers import tables

from kernelwright.sweep import Ask, Corpus
from kernelwright.sweep.cluster import room, rows_on_ray
from kernelwright.sweep.journal import rows

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelwright[cluster]'")

COUNT = 24
SECONDS = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that runs no task, and two nodes of two CPUs."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        src = str(Path(__file__).parents[2] / "src")
        patch.setenv("PYTHONPATH", os.pathsep.join([src, str(Path(__file__).parent)]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        checks = {"health_check_period_ms": 500, "health_check_failure_threshold": 6}
        head = {"num_cpus": 0, "_system_config": checks | {"health_check_initial_delay_ms": 0}}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            made.add_node(num_cpus=2)
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


def problems_of(folder: Path) -> Path:
    kinds = ["slow 0.4 2.0", "slow 0.4 0.5", "wrong"]
    return write_problems(folder, {f"{i}_task": kinds[i % 3] for i in range(COUNT)})


def test_every_task_ends_once_though_a_worker_and_a_node_are_killed(
    cluster: Any, tmp_path: Path
) -> None:
    problems = problems_of(tmp_path / "p")
    pretend(problems, tmp_path / "calm")
    out, log = tmp_path / "out", tmp_path / "log"
    killed: list[str] = []

    def kill() -> None:
        wait_for(lambda: out.exists() and len(list(rows(out))) >= 4)
        os.kill(ray_worker_of(log), signal.SIGKILL)
        killed.append("worker")
        wait_for(lambda: len(list(rows(out))) >= 10)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        killed.append("node")

    killer = threading.Thread(target=kill)
    killer.start()
    pretend(problems, out, log=log, on="ray", ask=Ask(cpus=1.0))
    killer.join()
    assert killed == ["worker", "node"]
    assert len(list(rows(out))) == len(statuses(out)) == COUNT
    assert statuses(out) == statuses(tmp_path / "calm")
    assert tables(out) == tables(tmp_path / "calm")
    again = Counter(name for name, _ in started(log))
    assert max(again.values()) > 1, "nothing was lost, so nothing was tested"


def test_a_task_that_takes_its_worker_along_is_lost_in_the_end(
    cluster: Any, tmp_path: Path
) -> None:
    """It is tried so many times, and the others end meanwhile."""
    problems = write_problems(tmp_path / "p", {"a": "hang", "b": "pass", "c": "pass"})
    log, stop = tmp_path / "log", threading.Event()

    def kill() -> None:
        seen: set[int] = set()
        while not stop.wait(0.05):
            for name, pid in started(log):
                if name == "a" and pid not in seen and (worker := above(pid)):
                    seen.add(pid)
                    os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    tasks = Corpus(problems)
    found = list(rows_on_ray(tasks, place(LIMITS, FAKE_LOG=str(log)), Ask(cpus=1.0, retries=1)))
    stop.set()
    killer.join()
    told = {row["problem"]: row for row in found}
    assert len(found) == 3
    assert told["b"]["status"] == told["c"]["status"] == "passed"
    assert told["a"]["status"] == "lost" and "lost 2 times" in told["a"]["reason"]
    assert sum(name == "a" for name, _ in started(log)) == 2


def test_few_tasks_are_read_before_there_is_room(cluster: Any, tmp_path: Path) -> None:
    problems = write_problems(tmp_path / "p", {f"{i}": "pass" for i in range(40)})
    taken = 0

    def counted() -> Iterator[Any]:
        nonlocal taken
        for task in Corpus(problems):
            taken += 1
            yield task

    ask = Ask(cpus=1.0)
    ended = 0
    for _ in rows_on_ray(counted(), place(), ask):
        assert taken - ended <= room(ray, ask) <= 8
        ended += 1
    assert ended == taken == 40


def above(pid: int) -> int | None:
    """The worker of Ray over a task's process: the guard is between them."""
    try:
        guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        worker = int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None
    return worker if worker > 1 else None


def ray_worker_of(log: Path) -> int:
    """One that is at work now."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [worker for _, pid in started(log) if (worker := above(pid))]
        return bool(found)

    wait_for(look)
    return found[-1]


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
