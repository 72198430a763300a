"""What `assert_certified` says of a certificate, and to whom: a failing test reads this.

In: a Certificate. Out: the same, or a NotCertifiedError. Whoever collects certificates (the pytest
plugin) puts a function into `listeners`; it hears of every one, passed or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kernelwright.errors import NotCertifiedError

if TYPE_CHECKING:
    from kernelwright.verify.certificate import Certificate

SHOWN = 5  # failed checks that the message quotes

listeners: list[Callable[[Certificate], None]] = []


def judged(certificate: Certificate) -> Certificate:
    """The certificate, if it passes."""
    for listener in listeners:
        listener(certificate)
    if not certificate:
        raise NotCertifiedError(_told(certificate), certificate)
    return certificate


def _told(certificate: Certificate) -> str:
    """The verdict, the first failures, and what repeats a failure on the same numbers."""
    failures = certificate.failures
    lines = [f"{certificate.title}: {certificate.verdict}."]
    lines += [f"  {check}" for check in failures[:SHOWN]]
    if len(failures) > SHOWN:
        lines.append(f"  and {len(failures) - SHOWN} more")
    if certificate.seed is not None:
        lines.append(f"Give seed={certificate.seed} for the same numbers again.")
    return "\n".join(lines)
