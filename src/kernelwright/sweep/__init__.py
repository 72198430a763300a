"""Sweeps: a folder of problems made fast, or of candidates judged, on this machine or on Ray.

In: folders. Out: a folder with one JSON line a task, tables, and what was made. Each task runs in a
process and a folder of its own; the driver runs nobody's code.
"""

from kernelwright.sweep.child import Place
from kernelwright.sweep.cluster import Ask
from kernelwright.sweep.corpus import Corpus
from kernelwright.sweep.run import Plan, Swept, sweep, written
from kernelwright.sweep.task import Limits, Options, Row, Task

__all__ = [
    "Ask",
    "Corpus",
    "Limits",
    "Options",
    "Place",
    "Plan",
    "Row",
    "Swept",
    "Task",
    "sweep",
    "written",
]
