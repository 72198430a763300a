"""All that a process of verify does with a module, by name: the judge asks for it in these words.

An act takes a module, Inputs, where it is, and plain parameters, and returns a tree of tensors and
plain values. The same act runs on candidate, original and oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.verify.acts import (
    calls,
    changes,
    devices,
    gradients,
    hooks,
    inside,
    large,
    memory,
    streams,
    uses,
    world,
)
from kernelwright.verify.acts.here import Here as Here

ACTS: dict[str, Callable[..., Any]] = {
    "once": calls.once,
    "by rows": calls.by_rows,
    "many": calls.many,
    "held": calls.held,
    "inputs after": calls.inputs_after,
    "generator": calls.generator,
    "multiplies": calls.multiplies,
    "repeated": calls.repeated,
    "in threads": calls.in_threads,
    "with threads": calls.with_threads,
    "several": calls.several,
    "cast": calls.cast,
    "in dtype": calls.in_dtype,
    "autocast": calls.autocast,
    "moved": calls.moved,
    "poisoned": memory.poisoned,
    "reallocated": memory.reallocated,
    "guarded": memory.guarded,
    "gradients": gradients.taken,
    "with attribute": changes.with_attribute,
    "with sublayer": changes.with_sublayer,
    "hooked": hooks.hooked,
    "observed": hooks.observed,
    "world": world.around,
    "on a stream": streams.behind_a_sleep,
    "in a graph": streams.in_a_graph,
    "unsynchronised": streams.unsynchronised,
    "on another device": devices.elsewhere,
    "footprint": large.footprint,
    "of rows": large.of_rows,
    "of many rows": large.of_many_rows,
    "inside": inside.steps,
    "used": uses.used,
}
