"""What a sweep found, in figures: rows in, a Summary out, in one pass over the journal.

fast_p is the share of all tasks, failed ones too, that are certified and more than p times as fast
as eager. Means are geometric, over the tasks that are certified and timed, and say over how many.
The one idea: only counts, sums and the few worst are kept, so that a million rows are no more than
a hundred.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelwright.sweep.task import Row, passed

FAST = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0)
EXAMPLES = 3
WORST = 10
CHANGED = 10
BASELINE, OURS = "eager", "candidate"


@dataclass
class Group:
    """A class of tasks, or all of them."""

    name: str
    tasks: int = 0
    passed: int = 0
    timed: int = 0
    logs: float = 0.0
    faster: Counter[float] = field(default_factory=Counter)
    over: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.tasks += 1
        if not passed(row):
            return
        self.passed += 1
        self.faster[0.0] += 1
        speedup = row.get("speedup")
        if not speedup:
            return
        self.timed += 1
        self.logs += math.log(speedup)
        self.faster.update(p for p in FAST if p and speedup > p)
        ms = row.get("ms", {})
        for name in ms.keys() - {OURS, BASELINE}:
            if ms.get(OURS) and ms[name]:
                count, logs = self.over.get(name, (0, 0.0))
                self.over[name] = count + 1, logs + math.log(ms[name] / ms[OURS])

    def fast(self, p: float) -> float:
        return self.faster[p] / self.tasks if self.tasks else 0.0

    @property
    def mean(self) -> float | None:
        """The geometric mean of the speed over eager."""
        return math.exp(self.logs / self.timed) if self.timed else None

    def mean_over(self, name: str) -> float | None:
        count, logs = self.over.get(name, (0, 0.0))
        return math.exp(logs / count) if count else None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tasks": self.tasks,
            "passed": self.passed,
            "timed": self.timed,
            "fast": {f"{p:g}": self.fast(p) for p in FAST},
            "over_eager": self.mean,
            "over": {name: self.mean_over(name) for name in sorted(self.over)},
        }


def _name(row: Row) -> tuple[str, str]:
    return str(row["problem"]), str(row["candidate"])


@dataclass
class Summary:
    """All tasks, by class, by status, the best of each problem, and the worst."""

    whole: Group = field(default_factory=lambda: Group("all"))
    classes: dict[str, Group] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, list[Row]] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    judged: bool = False
    seconds: float = 0.0
    _worst: list[tuple[tuple[float, str], int, Row]] = field(default_factory=list)

    @property
    def worst(self) -> list[Row]:
        """What failed, then what is slowest."""
        return [row for _, _, row in sorted(self._worst, key=lambda item: _rank(item[2]))]

    @property
    def of_problems(self) -> Group:
        """Each problem by its best candidate."""
        group = Group("the best candidate of each problem")
        for speedup in self.best.values():
            group.add({"status": "passed" if speedup >= 0 else "wrong", "speedup": speedup})
        return group

    def add(self, row: Row) -> None:
        self.whole.add(row)
        self.classes.setdefault(row["class"], Group(row["class"])).add(row)
        self.statuses[row["status"]] += 1
        self.seconds += row.get("seconds") or 0.0
        self.judged = self.judged or bool(row["candidate"])
        speedup = (row.get("speedup") or 0.0) if passed(row) else -1.0
        self.best[row["problem"]] = max(speedup, self.best.get(row["problem"], -1.0))
        few = {name: row.get(name) for name in ("problem", "candidate", "status", "reason")}
        few["speedup"] = row.get("speedup") if passed(row) else None
        if not passed(row):
            # Whoever ended first: the same sweep on other machines has the same table.
            examples = [*self.reasons.get(row["status"], []), few]
            self.reasons[row["status"]] = sorted(examples, key=_name)[:EXAMPLES]
        heapq.heappush(self._worst, (_Last(_rank(few)), self.whole.tasks, few))
        if len(self._worst) > WORST:
            heapq.heappop(self._worst)

    def to_json(self) -> dict[str, Any]:
        return {
            "all": self.whole.to_json(),
            "classes": [self.classes[name].to_json() for name in sorted(self.classes)],
            "statuses": dict(sorted(self.statuses.items())),
            "problems": self.of_problems.to_json(),
            "worst": self.worst,
            "seconds": round(self.seconds, 3),
        }


def _rank(row: Row) -> tuple[float, str]:
    """The worst first."""
    name = f"{row['problem']} {row['candidate']}"
    return (row.get("speedup") or math.inf if passed(row) else -1.0), name


class _Last(tuple[float, str]):
    """Sorts the other way round: a heap gives up what is least bad."""

    def __new__(cls, rank: tuple[float, str]) -> _Last:
        return super().__new__(cls, rank)

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return tuple.__gt__(self, other)


def summarised(rows: Iterable[Row]) -> Summary:
    summary = Summary()
    for row in rows:
        summary.add(row)
    return summary


@dataclass
class Comparison:
    """Two sweeps of the same tasks: what changed its status, and how the speeds differ."""

    other: str
    shared: int = 0
    only_here: int = 0
    only_there: int = 0
    timed: int = 0
    logs: float = 0.0
    changed: list[dict[str, Any]] = field(default_factory=list)
    moved: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """The geometric mean of the other's time over this one's: above 1 this one is faster."""
        return math.exp(self.logs / self.timed) if self.timed else None

    def to_json(self) -> dict[str, Any]:
        names = ("other", "shared", "only_here", "only_there", "timed", "changed", "moved")
        return {**{name: getattr(self, name) for name in names}, "ratio": self.ratio}


def compared(here: Iterable[Row], there: Iterable[Row], other: str) -> Comparison:
    """Tasks are the same by their names: versions and options may differ."""
    known = {_identity(row): (row["status"], _ours(row)) for row in there}
    found = Comparison(other)
    moved: list[tuple[float, dict[str, Any]]] = []
    for row in here:
        if (before := known.pop(_identity(row), None)) is None:
            found.only_here += 1
            continue
        found.shared += 1
        told = {"problem": row["problem"], "candidate": row["candidate"]}
        if before[0] != row["status"]:
            found.changed.append({**told, "from": before[0], "to": row["status"]})
        ms = _ours(row)
        if ms and before[1]:
            found.timed += 1
            found.logs += math.log(before[1] / ms)
            ratio = before[1] / ms
            moved.append((abs(math.log(ratio)), {**told, "ratio": ratio}))
    found.only_there = len(known)
    found.moved = [told for _, told in heapq.nlargest(CHANGED, moved, key=lambda item: item[0])]
    return found


def _identity(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["problem"], row["candidate"]


def _ours(row: Row) -> float | None:
    return (row.get("ms") or {}).get(OURS) if passed(row) else None
