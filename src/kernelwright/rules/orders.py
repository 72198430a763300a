"""Functions that keep the order of numbers, which therefore go past a maximum or a minimum.

NaN passes through each of them, and none makes a NaN from a number or an infinity (a slope or
factor of 0 would), so NaN and infinities stay in place. Functions whose rounding keeps the order
are exact; exp and its relatives are evaluated on the very same element, but two elements that
nearly tie could have come out in either order by one rounding.
"""

from __future__ import annotations

from kernelwright.graph import Node
from kernelwright.rules.clamps import CLAMPS, bounds
from kernelwright.rules.conditions import in_range
from kernelwright.rules.constants import SHIFTS, shift_of

ORDERLY = (*CLAMPS, *SHIFTS, "mul", "div", "leaky_relu")
SMOOTH = ("sigmoid", "tanh", "exp", "elu", "selu", "softplus", "hardsigmoid", "expm1", "atan")


def unordered(node: Node) -> str | None:
    """Why the function is not known to keep the order of numbers, or None."""
    dtype = node.type.dtype
    if node.op in CLAMPS:
        found = bounds(node)
        return found if isinstance(found, str) else None
    if node.op in SHIFTS:
        shift, alpha = node.args[1:3]
        if not isinstance(shift, int | float):
            return f"the shift {shift} is known only at a call"
        added = shift_of(node.op, shift, alpha)
        return None if in_range(added, dtype) else f"the shift {added:g} is not in range"
    if node.op in ("mul", "div", "leaky_relu"):
        factor = node.args[1]
        if not isinstance(factor, int | float):
            return f"the sign of {factor} is not known"
        safe = factor > 0 and in_range(factor, dtype)
        return None if safe else f"{node.name} by {factor:g} does not keep the order of numbers"
    if node.op == "softplus" and not _joins_smoothly(node):
        return f"{node.name} falls at its threshold"
    if node.op in ("elu", "softplus"):
        positive = all(isinstance(n, int | float) and n > 0 for n in node.args[1:])
        return None if positive else f"{node.name} has a number that is not positive"
    return None if node.op in SMOOTH else f"{node.name} is not known to be increasing"


def _joins_smoothly(node: Node) -> bool:
    """Above its threshold softplus is x, which is less than log(1 + exp(x)): by 2e-9 at 20."""
    threshold = node.args[2]
    return isinstance(threshold, int | float) and threshold >= 20
