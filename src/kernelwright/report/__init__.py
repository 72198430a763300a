"""Results in, things to look at out: tables for a terminal of 100 columns, HTML, and JSON."""

from kernelwright.report.machine import cache_table, cleaned_table, diagnosis_table, size_line
from kernelwright.report.output import Output
from kernelwright.report.tables import (
    checked_table,
    compared_table,
    difference_table,
    ledger_table,
    plan_table,
    profile_table,
    summary_table,
    timings_table,
)

__all__ = [
    "Output",
    "cache_table",
    "checked_table",
    "cleaned_table",
    "compared_table",
    "diagnosis_table",
    "difference_table",
    "ledger_table",
    "plan_table",
    "profile_table",
    "size_line",
    "summary_table",
    "timings_table",
]
