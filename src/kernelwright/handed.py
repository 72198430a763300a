"""What kernels hand back of a graph: its outputs, without the views that are made outside.

In: a Graph of primitives. Out: Results. An output that is a mere regrouping of a value is made
outside of autograd's function, since torch forbids writing in place to views that were made inside;
one that is a view of another output is made of that, where autograd sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from kernelwright.graph import SOURCES, Graph, Ref, Scalar, is_differentiable, refs


@dataclass(frozen=True)
class Result:
    """A value that the kernels hand back; `leaf` is the output that it becomes, if any."""

    name: str
    leaf: int | None


def handed_back(graph: Graph) -> list[Result]:
    """Outputs, and elements that are numbers."""
    found: dict[str, Result] = {}
    leaves, cut = pytree.tree_leaves(graph.outputs), detached(graph)
    kept = {graph.regrouped(n) for n in refs(leaves) if n not in cut}

    def is_detached(leaf: Any) -> bool:
        return isinstance(leaf, Ref) and leaf.name in cut

    # A value that is returned both with and without its history is handed back with it.
    for i, leaf in sorted(enumerate(leaves), key=lambda pair: is_detached(pair[1])):
        if isinstance(leaf, Ref) and graph[graph.base(leaf.name)].op not in SOURCES:
            name = graph.regrouped(leaf.name)
            if kept.isdisjoint(_under(graph, name)):
                found.setdefault(name, Result(name, i))
    for name in refs([leaf for leaf in leaves if isinstance(leaf, Scalar)]):
        if graph[graph.base(name)].op not in SOURCES:
            found.setdefault(name, Result(name, None))
    return list(found.values())


def detached(graph: Graph) -> frozenset[str]:
    """Outputs that no gradient flows through, although their type would allow it."""
    leaves, reaches = pytree.tree_leaves(graph.outputs), graph.contract.reaches
    if reaches is None or len(reaches) != len(leaves):
        return frozenset()
    names = [leaf.name if isinstance(leaf, Ref) else "" for leaf in leaves]
    cut = {n for n, of in zip(names, reaches, strict=True) if n and not of}
    cut -= {n for n, of in zip(names, reaches, strict=True) if of}
    return frozenset(n for n in cut if is_differentiable(graph[n].type.dtype))


def _under(graph: Graph, name: str) -> Iterator[str]:
    """What a value is a view of, and so on."""
    while graph[name].op == "view":
        name = graph[name].inputs[0]
        yield name
