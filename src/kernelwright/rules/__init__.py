"""The algebra: every law that kernelwright knows, one theme a file, each file a tuple RULES.

A law is one Rule in one of these files and one row in the table of tests/null/test_rules.py, which
runs both of its sides. ALL_RULES is the order in which they are tried at a node: what folds numbers
goes before what moves values.
"""

from kernelwright.pattern import Rule
from kernelwright.rules import (
    affine,
    biases,
    clamps,
    constants,
    extremes,
    normalisation,
    pools,
    products,
    reductions,
    rows,
    spaces,
    sums,
)
from kernelwright.rules.spaces import POOL_FIRST, in_double, unless_folded

__all__ = ["ALL_RULES", "POOL_FIRST", "in_double", "unless_folded"]

ALL_RULES: tuple[Rule, ...] = (
    *constants.RULES,
    *clamps.RULES,
    *reductions.RULES,
    *biases.RULES,
    *normalisation.RULES,
    *pools.RULES,
    *extremes.RULES,
    *sums.RULES,
    *affine.RULES,
    *spaces.RULES,
    *products.RULES,
    *rows.RULES,
)
