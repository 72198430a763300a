"""What verify proved: a Certificate, one Check a line, with the figures it was judged by.

In: findings of the checks. Out: frozen values that print as plain text and as JSON. The one idea:
`passed` is True, False, or None for "not applicable"; None is never counted as evidence. Each check
belongs to a level, and a level holds if nothing stands against it or against one below it.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelwright.shown import Shown

ESSENTIAL = "oracle"
SUMMARIES = ("fallbacks", "the file")  # checks that are made of all the others
SANITIZER = "memory: sanitizer"  # a check that is run where it is asked for
UNRUN = 3  # names that a verdict quotes
# What a candidate can be, each with all that stands before it.
LEVELS = FUNCTION, GRADIENTS, MODULE, DROP_IN = ("function", "gradients", "module", "drop-in")
AS = {
    FUNCTION: "as a function",
    GRADIENTS: "with its gradients",
    MODULE: "as a module",
    DROP_IN: "as a drop-in",
}
MARKS = {True: "pass", False: "FAIL", None: "n/a"}


@dataclass(frozen=True)
class Finding:
    """What one check function found, before it is given the check's name."""

    passed: bool | None
    detail: str
    error: float | None = None
    eager_error: float | None = None
    allowed: float | None = None
    weak: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    inputs: Any = None  # that it failed on
    log: str = ""
    drawn: tuple[tuple[str, ...], ...] = ()  # rules of use, history by history


@dataclass(frozen=True)
class Check:
    """One named line of a certificate; `fallbacks` is None when the candidate counts none."""

    name: str
    passed: bool | None
    detail: str
    error: float | None = None
    eager_error: float | None = None
    allowed: float | None = None
    seconds: float = 0.0
    fallbacks: dict[str, int] | None = None
    log: str = ""
    level: str = FUNCTION
    limits: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Nothing in it stands against its level: neither a failure nor what is not done at all."""
        return self.passed is not False and not (self.passed is None and self.limits)

    @property
    def reproducible(self) -> bool:
        """Whether it can be run alone; those that sum up the others cannot."""
        return self.name not in SUMMARIES

    def __str__(self) -> str:
        return f"{MARKS[self.passed]:4}  {self.name}: {self.detail}"


@dataclass(frozen=True)
class Certificate(Shown):
    """Every check of one candidate against one model, and what weakens or limits the evidence.

    `sha256` is that of the candidate's file, taken before it was run; `seed` gives the same numbers
    again. `asked` is the level that the candidate has to reach, `apart` what kept its process from
    others; `uses` tells how often each rule of use was drawn, `pairs` which came right after which.
    A certificate of a selection of checks (`only`), or with checks for which there was no time
    (`unrun`) at the level that was asked for, never passes as a whole.
    """

    model: str
    candidate: str
    device: str
    precision: str
    checks: tuple[Check, ...]
    weak: tuple[str, ...] = ()
    fallbacks: dict[str, int] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    seed: int | None = None
    sha256: str = ""
    model_sha256: str = ""
    only: tuple[str, ...] = ()
    unrun: tuple[str, ...] = ()
    asked: str = FUNCTION
    apart: str = ""
    uses: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.candidate} against {self.model} on {self.device}, {self.precision}"

    @property
    def failures(self) -> tuple[Check, ...]:
        """Those of the lowest level first."""
        wrong = [check for check in self.checks if check.passed is False]
        return tuple(sorted(wrong, key=lambda check: LEVELS.index(check.level)))

    @property
    def level(self) -> str | None:
        """The highest level that holds, with all below it."""
        compared = any(check.name == ESSENTIAL and check.passed for check in self.checks)
        held = None
        for level in LEVELS if compared and not self.only else ():
            if self.against(level):
                break
            held = level
        return held

    def against(self, level: str) -> tuple[Check, ...]:
        """What stands against a level by itself, not counting the levels below it."""
        return tuple(
            check
            for check in self.checks
            if check.level == level and (not check.holds or check.name in self.unrun)
        )

    @property
    def passed(self) -> bool:
        """It is at least what was asked for, and the values were really compared."""
        return self.level is not None and LEVELS.index(self.level) >= LEVELS.index(self.asked)

    def __bool__(self) -> bool:
        """Whether it certifies: `if kernelwright.verify(...)` asks for the verdict."""
        return self.passed

    @property
    def verdict(self) -> str:
        if self.passed:
            return self._passed()
        within = LEVELS[: LEVELS.index(self.asked) + 1]
        wrong = [c for c in self.checks if not c.holds and (c.level in within or self.only)]
        below = f"; it holds {AS[self.level]}" if self.level else ""
        if wrong:
            names = ", ".join(check.name for check in wrong)
            return f"FAILED: {len(wrong)} of {len(self.checks)} checks ({names}){below}"
        if self.only:
            return f"NOT CERTIFIED: nothing failed, but only {', '.join(self.only)} ran"
        if self.unrun:
            names = ", ".join(self.unrun[:UNRUN])
            more = f" and {len(self.unrun) - UNRUN} more" if len(self.unrun) > UNRUN else ""
            told = f"there was no time for {names}{more}; use --thorough, or a machine at rest"
            return f"NOT CERTIFIED: nothing failed, but {told}{below}"
        return "NOT CERTIFIED: nothing failed, but the values could not be compared"

    def _passed(self) -> str:
        assert self.level is not None
        passed = sum(check.passed is True for check in self.checks)
        skipped = sum(check.passed is None and check.holds for check in self.checks)
        told = f"PASSED {AS[self.level]}: {passed} checks"
        told += f", {skipped} not applicable" if skipped else ""
        if self.level == LEVELS[-1]:
            return told
        following = LEVELS[LEVELS.index(self.level) + 1]
        names = ", ".join(check.name for check in self.against(following))
        return f"{told}; against {following} stands: {names}"

    def command(self, check: Check) -> str:
        """What runs one check again, on the same numbers."""
        parts = ["kernelwright", "verify", self.model, self.candidate]
        parts += ["--sanitize", "--only", "runs"] if check.name == SANITIZER else []
        parts += ["--only", check.name] if check.name != SANITIZER else []
        parts += ["--seed", str(self.seed), "--device", self.device.partition(":")[0]]
        return shlex.join([*parts, "--precision", self.precision])

    def to_json(self) -> dict[str, Any]:
        first = {"passed": self.passed, "level": self.level, "verdict": self.verdict}
        return {**first, **asdict(self)}

    def __str__(self) -> str:
        lines = [self.title, *(str(check) for check in self.checks)]
        lines += [f"weak  {sentence}" for sentence in self.weak]
        lines += [f"limit The candidate {sentence}." for sentence in self.limits]
        return "\n".join([*lines, self.verdict])

    def __repr__(self) -> str:
        return f"Certificate({self.verdict})"
