"""Convolutions of single places become products of the library, where it is faster at those.

In: a graph in which each of the library's convolutions has its order of memory, and the target.
Out: the graph, in which such a convolution with its channels first is called as a product of
matrices. Its index maps stay: what it computes is the same. With the channels last the library's
convolution is such a product by itself.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelwright.graph import Call, Contraction, Graph, Node
from kernelwright.plan.convolutions import conv_form
from kernelwright.targets.target import Target


def as_products(graph: Graph, target: Target) -> Graph:
    library = target.convolutions
    if library is None or not library.pixels_as_products:
        return graph
    return graph.with_nodes([_as_product(graph, node) for node in graph])


def is_of_pixels(graph: Graph, node: Node) -> bool:
    """Whether it is a convolution of float32 whose windows are one place, each taken once."""
    form = conv_form(graph, node) if isinstance(node.payload, Contraction) else None
    if form is None or form.transposed or form.groups != 1 or node.type.dtype != torch.float32:
        return False
    batched = len(graph[form.input].type.shape) == len(graph[form.weight].type.shape)
    return batched and form.taps == 1 and form.in_size == form.out_size and not any(form.padding)


def _as_product(graph: Graph, node: Node) -> Node:
    of = node.payload
    if not isinstance(of, Contraction) or of.call.order or not is_of_pixels(graph, node):
        return node

    def asked(call: Call) -> Call:
        return replace(call, of_pixels=True)

    biased = asked(of.biased) if of.biased is not None else None
    return replace(node, payload=replace(of, call=asked(of.call), biased=biased))
