"""A run that fell back to the original certifies nothing about the candidate's kernels.

What the original gives is right, so this stands against nothing but the last level, to which all
that kernelwright emits is held.

In: the checks that have run, each with the fallbacks that were counted during it. Out: one more
Check. It needs no child process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernelwright.verify.certificate import DROP_IN, Check

NAME = "fallbacks"


def count_fallbacks(checks: Iterable[Check]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for check in checks:
        total.update(check.fallbacks or {})
    return dict(total)


def judge_fallbacks(checks: Iterable[Check], main: frozenset[str]) -> Check:
    """Fails when a main check fell back; falls elsewhere are listed."""
    ran = list(checks)
    if all(check.fallbacks is None for check in ran):
        return Check(NAME, None, "the candidate counts no fallbacks", level=DROP_IN)
    fallen = {check.name: check.fallbacks for check in ran if check.fallbacks}
    if not fallen:
        return Check(NAME, True, "none in any check", level=DROP_IN)
    listed = "; ".join(f"{name}: {_causes(causes)}" for name, causes in fallen.items())
    if in_main := [name for name in fallen if name in main]:
        told = f"the original ran instead in {', '.join(in_main)} ({listed})"
        return Check(NAME, False, told, level=DROP_IN)
    return Check(NAME, True, f"none in the main checks; elsewhere {listed}", level=DROP_IN)


def _causes(causes: dict[str, int]) -> str:
    return ", ".join(f"{cause} ({count})" for cause, count in causes.items())
