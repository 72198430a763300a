"""Timings that were saved, beside those of now: a file in, a row for each variant of both out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.bench.timings import Timings
from kernelwright.errors import InputError

SAME = ("device", "torch", "precision")  # or else the two cannot be compared


@dataclass(frozen=True)
class Then:
    """One variant then and now, in ms; `clear` where the spreads do not overlap."""

    name: str
    then_ms: float
    now_ms: float
    clear: bool

    @property
    def ratio(self) -> float:
        """How many times faster it is now."""
        return self.then_ms / self.now_ms


def read(path: str | Path) -> dict[str, Any]:
    """What `kernelwright bench --save` wrote."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as saved timings: {error}.") from error
    if not isinstance(value, dict) or "rows" not in value:
        raise InputError(f"{path} holds no timings; give what `kernelwright bench --save` wrote.")
    return value


def compared(saved: Mapping[str, Any], now: Timings) -> tuple[list[Then], list[str]]:
    """The variants that both have, forward and training steps, and why to doubt the comparison."""
    fresh = now.to_json()
    rows = []
    for part, suffix in (("rows", ""), ("training", ", a training step")):
        known = {row["name"]: row for row in saved.get(part, ()) if row["median_ms"]}
        for row in fresh[part]:
            old = known.get(row["name"])
            if old is not None and row["median_ms"]:
                apart = row["p10_ms"] > old["p90_ms"] or row["p90_ms"] < old["p10_ms"]
                times = old["median_ms"], row["median_ms"]
                rows.append(Then(row["name"] + suffix, *times, apart))
    doubts = [
        f"The {name} was {saved.get(name)} then and is {fresh[name]} now"
        for name in SAME
        if saved.get(name) != fresh[name]
    ]
    then, here = (x["conditions"].get("input") for x in (saved, fresh))
    if then != here:
        doubts.append(f"The input was {then} then and is {here} now")
    return rows, doubts
