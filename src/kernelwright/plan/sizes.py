"""Which sizes products need to know: a generated one has rows for every call, the rest is compiled.

In: a graph whose leading sizes are free. Out: the inputs whose leading size is better taken as it
is in the example, because the columns or the depth of what most of the model's time goes into hang
on it: `x @ y.T` is as wide as y has rows, and `x.T @ y` as deep. Other sizes are the original's
then. A model that only ends in such a product, such as a contrastive loss, keeps them all free.
"""

from __future__ import annotations

from kernelwright.graph import Contraction, Dim, Graph, Node, hint
from kernelwright.plan.operands import Form, form_of
from kernelwright.plan.policy import Policy
from kernelwright.plan.seats import ProductChoice, takes
from kernelwright.targets.target import Target

MOST = 0.5  # of the operations of all contractions


def sizes_to_hold(
    graph: Graph, target: Target, precision: str, batch: int, policy: Policy
) -> frozenset[str]:
    """The names of such inputs."""
    contractions = [n for n in graph if isinstance(n.payload, Contraction)]
    products = [n for n in contractions if target.loops and n.payload.is_product]  # type: ignore[union-attr]
    found: dict[str, Form] = {}
    for node in products:
        form = _awaiting(graph, node, target, precision, batch, policy)
        if form is not None:
            found[node.name] = form
    waiting = sum(_flops(graph[name], batch) for name in found)
    if not waiting or waiting < MOST * sum(_flops(n, batch) for n in contractions):
        return frozenset()
    symbols = {s for form in found.values() for n in (form.columns, form.depth) for s in _free(n)}
    places = [place for symbol, place in graph.symbols.items() if symbol in symbols]
    return frozenset(name for name, axis in places if axis == 0)


def _awaiting(
    graph: Graph, node: Node, target: Target, precision: str, batch: int, policy: Policy
) -> Form | None:
    """The product, if it would be generated and all that is missing are its sizes."""
    loop = target.loop_for(node.type.dtype, precision)
    if loop is None or {graph[name].type.dtype for name in node.inputs[:2]} != {loop.dtype}:
        return None
    form = form_of(graph, node, lambda form: takes(loop, form))
    if form is None or not (_free(form.columns) or _free(form.depth)):
        return None
    columns, depth = hint(form.columns, batch), hint(form.depth, batch)
    choice = ProductChoice(graph, target, precision, batch, policy, frozenset())
    return form if choice.faster(loop, form, columns, depth, ()) is not None else None


def _free(dim: Dim) -> set[str]:
    return set() if isinstance(dim, int) else {str(s) for s in dim.free_symbols}


def _flops(node: Node, batch: int) -> int:
    payload = node.payload
    assert isinstance(payload, Contraction)
    return hint(payload.flops, batch)
