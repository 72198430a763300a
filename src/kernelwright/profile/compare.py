"""Two profiles side by side: what each step took in both, in the order of the first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kernelwright.errors import InputError
from kernelwright.profile.events import Spent
from kernelwright.profile.run import Profile


@dataclass(frozen=True)
class Difference:
    """A step or an operator of two profiles, in us; None where one of them has none of it."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float:
        return (self.after or 0.0) - (self.before or 0.0)


def difference(before: Profile, after: Profile) -> list[Difference]:
    """Matched by the names of steps; what has no step, by the name of the operator."""
    left, right = (_times(found) for found in (before, after))
    return [Difference(name, left.get(name), right.get(name)) for name in {**left, **right}]


def _times(found: Profile) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in found.spent:
        name = row.step or f"torch: {row.name}"
        times[name] = times.get(name, 0.0) + row.us
    return times


def read(path: str | Path) -> Profile | None:
    """A profile that was written with --json; None if this is no such file's name."""
    path = Path(path)
    if path.suffix != ".json":
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        rows = [{k: v for k, v in row.items() if k != "predicted_us"} for row in value["spent"]]
        kept = ("model", "device", "precision", "calls", "call_us", "ceilings")
        return Profile(
            **{name: value[name] for name in kept},
            spent=tuple(Spent(**row) for row in rows),
            steps=tuple(value["steps"]),
            notices=tuple(value["notices"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no profile that `kernelwright profile --json` wrote: {error}."
        ) from error
