"""Composites become primitives: group_norm turns into reductions and maps, linear into a product.

In: a captured Graph. Out: a Graph of PRIMITIVES only (see graph.py). The one idea: LOWERINGS maps
an ATen op to a function that rebuilds it from primitives; an op without a lowering, or one whose
lowering declines (`return None`), becomes an opaque call to ATen that remembers which of the
two it was.
"""

from __future__ import annotations

from kernelwright.expand import (
    attention,
    contractions,
    dropout,
    losses,
    norms,
    planes,
    pointwise,
    pools,
    reductions,
    scatters,
    shapes,
)
from kernelwright.expand.builder import Builder, Lowering
from kernelwright.expand.layouts import lay_out
from kernelwright.graph import Graph

LOWERINGS: dict[str, Lowering] = {
    **pointwise.LOWERINGS,
    **reductions.LOWERINGS,
    **norms.LOWERINGS,
    **losses.LOWERINGS,
    **pools.LOWERINGS,
    **scatters.LOWERINGS,
    **shapes.LOWERINGS,
    **contractions.LOWERINGS,
}


def expand(
    graph: Graph,
    attends: attention.Attends | None = None,
    drops: bool = False,
    flat: bool = False,
) -> Graph:
    """Lower every node; names of captured values survive, so origins and outputs stay valid.

    `attends` says of which query, key and value torch's own attention is taken apart, `drops` that
    there is a kernel for the masks of live dropout, `flat` that the machine is a CPU, where lines
    are convolved as planes and torch's attention is another one.
    """
    lowerings = LOWERINGS | (attention.lowering(attends, flat) if attends is not None else {})
    lowerings |= dropout.LOWERINGS if drops else {}
    lowerings |= planes.LOWERINGS if flat else {}
    return lay_out(Builder(graph).run(lowerings, shapes.LOWERINGS))
