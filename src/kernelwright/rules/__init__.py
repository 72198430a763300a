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
from kernelwright.targets.target import Target

__all__ = ["ALL_RULES", "POOL_FIRST", "first_pools", "in_double", "laws_of"]

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


def laws_of(target: Target, tf32: bool) -> tuple[Rule, ...]:
    """The laws for a machine; `tf32`: eager may round operands of its convolutions."""
    if target.lanes is not None and tf32:
        return ALL_RULES
    convolves = target.convolutions is None or target.convolutions.in_double
    return in_double(ALL_RULES, convolves)


def first_pools(rules: tuple[Rule, ...], folded: frozenset[str] | None) -> tuple[Rule, ...]:
    """Without the law of POOL_FIRST where a convolution is `folded`; None: any may be."""
    return unless_folded(rules, lambda conv: folded is None or not folded.isdisjoint(conv.sources))
