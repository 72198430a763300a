"""What autograd records of a result, as one word: equal words are equal derivatives.

In: tensors with their histories. Out: for each a digest of the functions behind it. Those that only
move elements are left out, since the same forward is written with others of them in a trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernelwright.walk import Opened, fold

LEAF, NOBODY = "leaf", "-"  # a tensor that asks for its gradient; one that does not
MOVES = frozenset(
    f"{name}Backward0"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "Permute", "Transpose", "T"),
        *("Squeeze", "Unsqueeze", "Expand", "Slice", "Select"),
    )
) | {"SqueezeBackward1", "SqueezeBackward2", "SqueezeBackward3"}
DROPOUT = "NativeDropoutBackward0"
# One operator in several spellings.
SPELLED = {
    "NativeBatchNormLegitFunctionalBackward0": "NativeBatchNormBackward0",
    "NativeBatchNormLegitBackward0": "NativeBatchNormBackward0",
    "NativeBatchNormLegitBackward1": "NativeBatchNormBackward0",
    "NativeBatchNormLegitNoTrainingBackward0": "NativeBatchNormBackward0",
    "MkldnnConvolutionBackward0": "ConvolutionBackward0",
}


Edge = tuple[Any, int]  # a function and which of its results


def histories(results: Sequence[Any]) -> tuple[str, ...]:
    """A digest for each result, empty where none is recorded."""
    known: dict[Edge, str] = {}
    return tuple(
        _digest(x, known) if isinstance(x, Tensor) and x.requires_grad else "" for x in results
    )


def _digest(result: Tensor, known: dict[Edge, str]) -> str:
    if result.grad_fn is None:
        return LEAF
    return fold((result.grad_fn, result.output_nr), _opened, known)


def _opened(edge: Edge) -> Opened[Edge, str]:
    function, place = edge
    following = list(function.next_functions)
    behind = [e for e in following if e[0] is not None]

    def word(of: Sequence[str]) -> str:
        if hasattr(function, "variable"):
            return LEAF
        if function.name() in MOVES and len(of) == 1:
            return of[0]
        found = iter(of)
        parts = [NOBODY if e[0] is None else next(found) for e in following]
        if function.name() == DROPOUT:  # a product, on a CPU
            return _product(place, [*parts, NOBODY])
        text = repr((SPELLED.get(function.name(), function.name()), place, parts))
        return _hash(text)

    return behind, word


def _product(place: int, parts: list[str]) -> str:
    return _hash(repr(("MulBackward0", place, parts)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
