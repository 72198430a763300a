"""A Certificate for a terminal: a row of figures a check, then each failure in full, the verdict.

In: a Certificate. Out: something that rich prints, readable at 80 columns.
"""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelwright.verify.certificate import MARKS, Certificate, Check

STYLES = {True: "green", False: "bold red", None: "dim"}


def render(certificate: Certificate) -> Group:
    """The certificate as a table, with what failed and what is weak spelled out below it."""
    parts: list[RenderableType] = [Text(certificate.title, style="bold"), _table(certificate)]
    for check in certificate.failures:
        parts.append(Text(f"{check.name} ({check.level}): {check.detail}", style="red"))
        if check.log:
            parts.append(Text(check.log, style="dim"))
        if certificate.seed is not None and check.reproducible:
            parts.append(Text(f"again: {certificate.command(check)}", style="dim"))
    parts += [Text(f"weak: {sentence}", style="yellow") for sentence in certificate.weak]
    parts += [Text(f"limit: the candidate {x}", style="yellow") for x in certificate.limits]
    if certificate.sha256:
        parts.append(Text(f"sha256 {certificate.sha256}, seed {certificate.seed}", style="dim"))
    parts.append(Text(certificate.verdict, style=STYLES[certificate.passed]))
    return Group(*parts)


def _table(certificate: Certificate) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("error", "eager", "allowed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for check in certificate.checks:
        table.add_row(*_row(check))
    return table


def _row(check: Check) -> tuple[Text, ...]:
    """Figures where there are any, and why a check does not apply; failures are spoken of below."""
    figures = (check.error, check.eager_error, check.allowed)
    return (
        Text(check.name),
        Text(MARKS[check.passed], style=STYLES[check.passed]),
        *(Text("" if x is None else f"{x:.1e}") for x in figures),
        Text(check.detail if check.passed is None else "", style="dim"),
    )
