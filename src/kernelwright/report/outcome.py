"""What `optimize` made of a file, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.bench.timings import Timings
from kernelwright.compiled import Compiled
from kernelwright.details import plan_record
from kernelwright.report import notices
from kernelwright.shown import Shown
from kernelwright.verify.certificate import Certificate


@dataclass(frozen=True)
class Outcome(Shown):
    """What `optimize` made of one file; `output` is None if the candidate was not certified.

    Then `kept` is where its text lies, for a report.
    """

    compiled: Compiled
    output: Path | None
    certificate: Certificate | None
    timings: Timings | None
    kept: Path | None = None

    @property
    def notices(self) -> list[str]:
        return [*notices.of_compiled(self.compiled), *notices.of_timings(self.timings)]

    def to_json(self) -> dict[str, Any]:
        return {
            "output": str(self.output) if self.output else None,
            "kept": str(self.kept) if self.kept else None,
            "notices": self.notices,
            "plan": plan_record(self.compiled),
            "certificate": None if self.certificate is None else self.certificate.to_json(),
            "timings": None if self.timings is None else self.timings.to_json(),
        }

    def __repr__(self) -> str:
        verdict = "not certified" if self.certificate is None else self.certificate.verdict
        return f"Outcome({self.output or 'no file'}; {verdict})"
