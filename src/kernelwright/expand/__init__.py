"""Composites become primitives: group_norm turns into reductions and maps, linear into a product.

In: a captured Graph. Out: a Graph of PRIMITIVES only (see graph.py). The one idea: LOWERINGS maps
an ATen op to a function that rebuilds it from primitives; an op without a lowering, or one whose
lowering declines (`return None`), becomes an opaque call to ATen that remembers which of the
two it was.
"""

from __future__ import annotations

from kernelwright.expand import contractions, losses, norms, pointwise, pools, reductions, shapes
from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.layouts import lay_out
from kernelwright.graph import Graph

LOWERINGS: dict[str, Lowering] = {
    **pointwise.LOWERINGS,
    **reductions.LOWERINGS,
    **norms.LOWERINGS,
    **losses.LOWERINGS,
    **pools.LOWERINGS,
    **shapes.LOWERINGS,
    **contractions.LOWERINGS,
}


def expand(graph: Graph) -> Graph:
    """Lower every node; names of captured values survive, so origins and outputs stay valid."""
    return lay_out(Builder(graph).run(LOWERINGS, shapes.LOWERINGS))
