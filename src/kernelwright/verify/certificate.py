"""What verify proved: a Certificate, one Check a line, with the figures it was judged by.

In: findings of the checks. Out: frozen values that print as plain text and as JSON. The one idea:
`passed` is True, False, or None for "not applicable"; None is never counted as evidence.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

ESSENTIAL = "oracle"
SUMMARIES = ("fallbacks", "the file")  # checks that are made of all the others
SANITIZER = "memory: sanitizer"  # a check that is run where it is asked for
UNRUN = 3  # names that a verdict quotes
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

    @property
    def reproducible(self) -> bool:
        """Whether it can be run alone; those that sum up the others cannot."""
        return self.name not in SUMMARIES

    def __str__(self) -> str:
        return f"{MARKS[self.passed]:4}  {self.name}: {self.detail}"


@dataclass(frozen=True)
class Certificate:
    """Every check of one candidate against one model, and what weakens or limits the evidence.

    `sha256` is that of the candidate's file, taken before it was run; `seed` gives the same numbers
    again. A certificate of a selection of checks (`only`), or with checks for which there was no
    time (`unrun`), never passes as a whole.
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

    @property
    def title(self) -> str:
        return f"{self.candidate} against {self.model} on {self.device}, {self.precision}"

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """Nothing failed, and the values on the file's own inputs were really compared."""
        compared = any(check.name == ESSENTIAL and check.passed for check in self.checks)
        return compared and not self.failures and not self.only and not self.unrun

    @property
    def verdict(self) -> str:
        if self.failures:
            names = ", ".join(check.name for check in self.failures)
            return f"FAILED: {len(self.failures)} of {len(self.checks)} checks ({names})"
        if self.only:
            return f"NOT CERTIFIED: nothing failed, but only {', '.join(self.only)} ran"
        if self.unrun:
            names = ", ".join(self.unrun[:UNRUN])
            more = f" and {len(self.unrun) - UNRUN} more" if len(self.unrun) > UNRUN else ""
            told = f"there was no time for {names}{more}; use --thorough, or a machine at rest"
            return f"NOT CERTIFIED: nothing failed, but {told}"
        if not self.passed:
            return "NOT CERTIFIED: nothing failed, but the values could not be compared"
        passed = sum(check.passed is True for check in self.checks)
        skipped = len(self.checks) - passed
        return f"PASSED: {passed} checks" + (f", {skipped} not applicable" if skipped else "")

    def command(self, check: Check) -> str:
        """What runs one check again, on the same numbers."""
        parts = ["kernelwright", "verify", self.model, self.candidate]
        parts += ["--sanitize", "--only", "runs"] if check.name == SANITIZER else []
        parts += ["--only", check.name] if check.name != SANITIZER else []
        parts += ["--seed", str(self.seed), "--device", self.device.partition(":")[0]]
        return shlex.join([*parts, "--precision", self.precision])

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "verdict": self.verdict, **asdict(self)}

    def __str__(self) -> str:
        lines = [self.title, *(str(check) for check in self.checks)]
        lines += [f"weak  {sentence}" for sentence in self.weak]
        lines += [f"limit The candidate {sentence}." for sentence in self.limits]
        return "\n".join([*lines, self.verdict])

    def __repr__(self) -> str:
        return f"Certificate({self.verdict})"

    def _repr_html_(self) -> str:
        from kernelwright.report.page import certificate_html

        return certificate_html(self)
