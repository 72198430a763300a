"""The operators that random models are made of: whatever expand/ knows, and some that it does not.

Each function proposes one step to a Writer. Expressions are Python text in which values are named.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzing.contractions import CONTRACTIONS
from fuzzing.pointwise import POINTWISE
from fuzzing.reductions import REDUCTIONS
from fuzzing.shapes import SHAPES
from fuzzing.writer import Writer

Operator = Callable[[Writer], None]

# How often each theme is asked.
GRAMMAR: tuple[Operator, ...] = (
    *POINTWISE * 3,
    *REDUCTIONS * 2,
    *SHAPES * 2,
    *CONTRACTIONS,
)
