"""Convolutions of few channels a group become sums over windows, where that beats the library.

In: a graph of primitives and the target. Out: the graph, in which such a contraction is a window of
its input, a product with the weight and a sum (one kernel with all that is around it), and the
reasons with their numbers. A depthwise convolution has so little arithmetic that it is bound by
memory, and tensor cores have nothing to do; what it is worth is to read its input once and to have
everything that follows in the same kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kernelwright.expr import call, load
from kernelwright.graph import (
    Contraction,
    Graph,
    Node,
    Payload,
    Reduction,
    Ref,
    Shape,
    Slide,
    TensorType,
    View,
    Windows,
    fresh_name,
    hint,
)
from kernelwright.plan.limits import OWN_WINDOW
from kernelwright.plan.model import Code, Shared, reason
from kernelwright.plan.policy import Policy
from kernelwright.targets import Target

LANES = 4  # outputs that a thread takes together, for the estimate


@dataclass(frozen=True)
class Grouped:
    """A convolution, with its channels as groups: `filters` of `channels` in each of `groups`."""

    samples: Shape
    groups: int
    filters: int
    channels: int
    space: Shape
    places: Shape
    taps: tuple[int, ...]
    slides: tuple[Slide, ...]

    @property
    def window(self) -> int:
        """What is summed for one element of the result."""
        return self.channels * math.prod(self.taps)

    def outputs(self, batch: int) -> int:
        sizes = (*self.samples, self.groups, self.filters, *self.places)
        return math.prod(hint(d, batch) for d in sizes)

    def inputs(self, batch: int) -> int:
        sizes = (*self.samples, self.groups, self.channels, *self.space)
        return math.prod(hint(d, batch) for d in sizes)


def grouped(graph: Graph, node: Node) -> Grouped | None:
    """A convolution in these terms; None: it is none, or transposed, or of unknown size."""
    of = node.payload
    if not isinstance(of, Contraction) or len(of.right) < 3 or len(of.left) < len(of.right) - 1:
        return None
    spatial = len(of.right) - 2
    first = len(of.left) - spatial
    group, filters, channels = (first - 1 + i for i in range(3))
    outer = (*of.left[: first - 1], *of.out[: first - 1])
    if len(of.sizes) != first + 2 + 2 * spatial or any(len(p.terms) != 1 for p in outer):
        return None
    shape = graph[node.inputs[0]].type.shape
    slides, taps, places = [], [], []
    for axis, (place, out, tap) in enumerate(
        zip(of.left[first:], of.out[first:], of.right[2:], strict=True), start=first
    ):
        if len(place.terms) != 2 or len(out.terms) != 1 or len(tap.terms) != 1:
            return None
        (at, step), (window, spread) = place.terms
        if (at, 1) != out.terms[0] or (window, 1) != tap.terms[0]:
            return None
        size = of.sizes[window]
        if not all(isinstance(d, int) for d in (size, of.sizes[at], shape[axis])):
            return None
        taps.append(int(str(size)))
        places.append(of.sizes[at])
        slides.append(Slide(axis + 1, taps[-1], step, spread, -place.offset))
    counts = [of.sizes[a] for a in (group, filters, channels)]
    if not all(isinstance(c, int) for c in counts):
        return None
    groups, each, deep = (int(str(c)) for c in counts)
    if of.left[first - 1].terms != ((group, deep), (channels, 1)):
        return None
    samples, space = tuple(shape[: first - 1]), tuple(shape[first:])
    return Grouped(samples, groups, each, deep, space, tuple(places), tuple(taps), tuple(slides))


def as_windows(
    graph: Graph, target: Target, policy: Policy, batch: int
) -> tuple[Graph, tuple[Shared, ...]]:
    """Rewrite what pays; a verdict on each convolution of few channels a group."""
    nodes: list[Node] = []
    verdicts: list[Shared] = []
    taken = set(graph.by_name)
    for node in graph:
        form = grouped(graph, node) if node.op == "contract" else None
        if form is None or form.groups == 1 or form.window > OWN_WINDOW:
            nodes.append(node)
            continue
        pays, verdict = _judged(node, form, target, policy, batch)
        verdicts.append(verdict)
        nodes += _rebuilt(node, form, taken) if pays else [node]
    return (graph.with_nodes(nodes) if verdicts else graph), tuple(verdicts)


def _judged(
    node: Node, form: Grouped, target: Target, policy: Policy, batch: int
) -> tuple[bool, Shared]:
    sums = target.sums
    if sums is None or form.window > sums.largest or hint(form.places[-1]) < sums.fewest:
        why = reason(Code.GROUPED, op=node.origin.op)
        return policy.generate_always, Shared(node.name, False, 1, why)
    outputs, window = form.outputs(batch), form.window
    moved = node.type.dtype.itemsize * (form.inputs(batch) + outputs)
    own = sums.time(outputs, window * (1 + 1 / LANES), moved)
    library = sums.library_time(outputs, window, form.channels, moved)
    pays = own < library or policy.generate_always
    code = Code.WINDOWED if pays else Code.GROUPED_LIBRARY
    why = reason(code, op=node.origin.op, own=own, library=library)
    return pays, Shared(node.name, False, 1, why)


def _rebuilt(node: Node, form: Grouped, taken: set[str]) -> list[Node]:
    """(n, g c, h, w) and (g f, c, r, s) -> (n, g, f, y, x, c, r, s), multiplied and summed."""
    x, w = node.inputs[:2]
    dtype, spatial = node.type.dtype, len(form.taps)
    n, groups, filters, channels = len(form.samples), form.groups, form.filters, form.channels
    ones = (1,) * spatial
    made: list[Node] = []

    def add(label: str, op: str, operands: list[str], shape: Shape, payload: Payload) -> str:
        name = fresh_name(f"{node.name}_{label}", taken) if label else node.name
        args = tuple(Ref(o) for o in operands)
        type = TensorType(shape, dtype)
        made.append(replace(node, name=name, op=op, args=args, type=type, payload=payload))
        return name

    parted: Shape = (*form.samples, groups, channels, *form.space)
    seen: Shape = (*form.samples, groups, channels, *form.places, *form.taps)
    behind = n + 2 + spatial
    order = (*range(n + 1), *range(n + 2, behind), n + 1, *range(behind, len(seen)))
    moved = tuple(seen[i] for i in order)
    wide: Shape = (*moved[: n + 1], 1, *moved[n + 1 :])
    beside: Shape = (groups, filters, *ones, channels, *form.taps)
    whole: Shape = (*moved[: n + 1], filters, *moved[n + 1 :])
    x = add("parted", "view", [x], parted, View("reshape"))
    x = add("windows", "window", [x], seen, Windows(form.slides, 0.0))
    x = add("moved", "view", [x], moved, View("permute", order))
    x = add("wide", "view", [x], wide, View("reshape"))
    w = add("taps", "view", [w], beside, View("reshape"))
    product = add("products", "map", [x, w], whole, call("mul", load(0), load(1)))
    rank = len(whole)
    axes = tuple(range(rank - spatial - 1, rank))
    total = add("sum", "reduce", [product], whole[: axes[0]], Reduction("sum", axes, False))
    add("", "view", [total], node.type.shape, View("reshape"))
    return made
