"""Ordinary modules as people write them, small: the table that the compiler must live up to."""

from __future__ import annotations

from zoo import (
    activations,
    attention,
    dense,
    losses,
    names,
    norms,
    recurrent,
    sequential,
    shapes,
    structure,
    types,
    vision,
)
from zoo.case import Case

THEMES = (
    activations, norms, sequential, dense, vision, attention, recurrent, losses, structure, shapes,
    types, names,
)  # fmt: skip
CASES: list[Case] = [case for theme in THEMES for case in theme.CASES]
