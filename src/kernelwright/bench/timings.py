"""What bench measured, and under which conditions: plain frozen records that turn into JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernelwright.shown import Shown


@dataclass(frozen=True)
class Timing:
    """One variant of the model; without a median, `note` says why it was not measured.

    `call_ms` is a call that is waited for, `compile_s` what it took until it was ready,
    `peak_bytes` what a call needs at once besides what is there before it.
    """

    name: str
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    host_ms: float | None = None
    runs: int = 0
    note: str = ""
    call_ms: float | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None

    @staticmethod
    def of(name: str, device_ms: Sequence[float], host_ms: Sequence[float]) -> Timing:
        ordered = sorted(device_ms)
        last = len(ordered) - 1
        return Timing(
            name,
            statistics.median(ordered),
            ordered[round(0.1 * last)],
            ordered[round(0.9 * last)],
            statistics.median(host_ms),
            len(ordered),
        )


@dataclass(frozen=True)
class Timings(Shown):
    """All variants of one problem at one precision, measured in turns in the same run.

    `training` are those of a training step (forward, loss, backward), if they were asked for;
    `warnings` say what disturbed the run.
    """

    model: str
    candidate: str
    device: str
    torch: str
    precision: str
    rows: tuple[Timing, ...]
    floor_ms: float | None
    floor_why: str
    verified: bool | None
    problems: tuple[str, ...]
    conditions: dict[str, Any]
    training: tuple[Timing, ...] = ()
    warnings: tuple[str, ...] = ()

    def row(self, name: str) -> Timing | None:
        return next((r for r in self.rows if r.name == name), None)

    @property
    def best_baseline(self) -> Timing | None:
        """The fastest measured variant that is not the candidate.

        Replaying a captured graph is a choice of the caller that the candidate has as well, so
        graph replays are compared with each other and are not baselines.
        """
        measured = [r for r in self.rows if r.name in BASELINES and r.median_ms is not None]
        return min(measured, key=lambda r: r.median_ms or 0.0, default=None)

    @property
    def speedup(self) -> float | None:
        """How many times faster the candidate is than the best baseline."""
        best, ours = self.best_baseline, self.row(CANDIDATE)
        if best is None or ours is None or not best.median_ms or not ours.median_ms:
            return None
        return best.median_ms / ours.median_ms

    @property
    def over_eager(self) -> float | None:
        """How many times faster the candidate is than eager; below 1 it is slower."""
        eager, ours = self.row("eager"), self.row(CANDIDATE)
        if eager is None or ours is None or not eager.median_ms or not ours.median_ms:
            return None
        return eager.median_ms / ours.median_ms

    @property
    def training_gain(self) -> float | None:
        """How many times faster a training step is than eager's."""
        times = {r.name: r.median_ms for r in self.training}
        eager, ours = times.get("eager"), times.get(CANDIDATE)
        return eager / ours if eager and ours else None

    def to_json(self) -> dict[str, Any]:
        best = self.best_baseline
        return asdict(self) | {
            "best_baseline": best.name if best else None,
            "speedup_over_best_baseline": self.speedup,
            "speedup_over_eager": self.over_eager,
            "training_gain": self.training_gain,
        }

    def __repr__(self) -> str:
        timed = [f"{r.name} {r.median_ms:.4g} ms" for r in self.rows if r.median_ms is not None]
        invalid = ", NOT VALID" if self.problems else ""
        return f"Timings({', '.join(timed)}{invalid})"

    def __str__(self) -> str:
        lines = [f"{self.candidate} against {self.model} on {self.device}, {self.precision}"]
        for row in self.rows:
            time = "-" if row.median_ms is None else f"{row.median_ms:.4g} ms"
            lines.append(f"{row.name:16}{time:>12}  {row.note}".rstrip())
        return "\n".join([*lines, *(f"NOT VALID: {p}" for p in self.problems)])


CANDIDATE = "candidate"
BASELINES = ("eager", "compile", "max-autotune")
TF32 = " TF32"  # behind the name of a baseline: the same, with float32 products in TF32
EAGER_GRAPH = "eager graph"
CANDIDATE_GRAPH = "candidate graph"
