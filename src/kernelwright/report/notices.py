"""What a user must not overlook, each in one line: nothing was fused, it is slower or for nothing.

In: a Compiled or Timings. Out: sentences for a loud line on the terminal, and for the JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.bench.timings import CANDIDATE, Timings
from kernelwright.errors import InputError, VerificationError

if TYPE_CHECKING:
    from kernelwright.compiled import Compiled

SHOWN = 3  # operators named in a sentence


def of_compiled(compiled: Compiled) -> list[str]:
    found = [compiled.target.notice] if compiled.target.notice else []
    if not compiled.fused:
        found.append(f"Nothing was fused: {_why_not(compiled)}.")
    return found


def of_timings(timings: Timings | None) -> list[str]:
    if timings is None:
        return []
    found, ratio = [], timings.over_eager
    if ratio is not None and ratio < 0.995:  # what rounds to 1.00x is a tie
        found.append(f"Slower than eager: {ratio:.2f}x.")
    if timings.conditions.get("degenerate"):
        found.append("Degenerate: the model's result is the same for other inputs.")
    return found


def _why_not(compiled: Compiled) -> str:
    left = [f"{row.op} ({row.why})" for row in compiled.ledger if row.fate == "aten"]
    if not left:
        return "the model has no operator that needs a kernel"
    named = list(dict.fromkeys(left))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return f"what there is stays with ATen: {', '.join(named[:SHOWN])}{more}"


def require_speedup(timings: Timings, wanted: float) -> None:
    """Raise unless the candidate is so many times faster than eager."""
    ratio, ours = timings.over_eager, timings.row(CANDIDATE)
    eager = timings.row("eager")
    if ratio is None or ours is None or eager is None:
        raise InputError("--require-speedup compares with eager, which was not timed.")
    if ratio < wanted:
        raise VerificationError(
            f"The candidate is {ratio:.2f}x as fast as eager ({ours.median_ms:.4g} ms against "
            f"{eager.median_ms:.4g} ms, medians), not {wanted:g}x as --require-speedup asks for."
        )
