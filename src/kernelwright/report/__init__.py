"""Results in, things to look at out: tables for a terminal of 100 columns, and JSON."""

from kernelwright.report.output import Output
from kernelwright.report.tables import (
    ledger_table,
    plan_table,
    summary_table,
    timings_table,
)

__all__ = ["Output", "ledger_table", "plan_table", "summary_table", "timings_table"]
