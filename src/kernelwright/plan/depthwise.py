"""Convolutions of few channels a group become sums over windows, where that beats the library.

In: a graph of primitives and the target. Out: the graph, in which such a contraction is a window of
its input, a product with the weight and a sum (one kernel with all that is around it), and the
reasons with their numbers. A depthwise convolution has so little arithmetic that it is bound by
memory, and tensor cores have nothing to do; what it is worth is to read its input once and to have
everything that follows in the same kernel. A transposed one that moves in steps of 1 is such a sum
too: its windows are walked backwards.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.expr import call, load
from kernelwright.graph import (
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
from kernelwright.plan.convolutions import ConvForm, conv_form
from kernelwright.plan.limits import OWN_WINDOW
from kernelwright.plan.policy import Policy
from kernelwright.plan.reasons import Code, Shared, reason
from kernelwright.targets.target import Target


def as_windows(
    graph: Graph, target: Target, policy: Policy, batch: int
) -> tuple[Graph, tuple[Shared, ...]]:
    """Rewrite what pays; a verdict on each convolution of few channels a group."""
    nodes: list[Node] = []
    verdicts: list[Shared] = []
    taken = set(graph.by_name)
    for node in graph:
        form = conv_form(graph, node) if node.op == "contract" else None
        if form is None or form.groups == 1 or form.depth > OWN_WINDOW or _in_phases(form):
            nodes.append(node)
            continue
        pays, verdict = _judged(node, form, target, policy, batch)
        verdicts.append(verdict)
        nodes += _rebuilt(graph, node, form, taken) if pays else [node]
    return (graph.with_nodes(nodes) if verdicts else graph), tuple(verdicts)


def _in_phases(form: ConvForm) -> bool:
    """Whether results of a transposed convolution see different taps."""
    return form.transposed and max(form.stride) > 1


def _judged(
    node: Node, form: ConvForm, target: Target, policy: Policy, batch: int
) -> tuple[bool, Shared]:
    sums = target.sums
    if sums is None or form.depth > sums.largest or form.out_size[-1] < sums.fewest:
        why = reason(Code.GROUPED, op=node.origin.op)
        return policy.generate_always, Shared(node.name, False, 1, why)
    samples, window = hint(form.batch, batch), int(form.depth)
    outputs = form.outputs(samples)
    moved = node.type.dtype.itemsize * (form.inputs(samples) + outputs)
    own = sums.time(outputs, window, moved)
    library = sums.library_time(outputs, window, form.cin // form.groups, moved)
    pays = own < library or policy.generate_always
    code = Code.WINDOWED if pays else Code.GROUPED_LIBRARY
    why = reason(code, op=node.origin.op, own=own, library=library)
    return pays, Shared(node.name, False, 1, why)


def _rebuilt(graph: Graph, node: Node, form: ConvForm, taken: set[str]) -> list[Node]:
    """(n, g c, h, w) and (g f, c, r, s) -> (n, g, f, y, x, c, r, s), multiplied and summed.

    The weight of a transposed one lies (g c, f, r, s). A single filter has no axis.
    """
    x, w = node.inputs[:2]
    dtype, spatial = node.type.dtype, len(graph[w].type.shape) - 2
    samples = graph[x].type.shape[: -spatial - 1]
    n, groups = len(samples), form.groups
    channels = form.cin // groups
    filters: Shape = (form.cout // groups,) if form.cout > groups else ()
    space, places, taps, steps, spread, before = (
        extents[-spatial:]
        for extents in (
            *(form.in_size, form.out_size, form.kernel),
            *(form.stride, form.dilation, form.padding),
        )
    )
    back = -1 if form.transposed else 1
    slides = tuple(
        Slide(axis, size, step, back * by, back * pad)
        for axis, (size, step, by, pad) in enumerate(
            zip(taps, steps, spread, before, strict=True), start=n + 2
        )
    )
    made: list[Node] = []

    def add(label: str, op: str, operands: list[str], shape: Shape, payload: Payload) -> str:
        name = fresh_name(f"{node.name}_{label}", taken) if label else node.name
        args = tuple(Ref(o) for o in operands)
        type = TensorType(shape, dtype)
        made.append(replace(node, name=name, op=op, args=args, type=type, payload=payload))
        return name

    parted: Shape = (*samples, groups, channels, *space)
    seen: Shape = (*samples, groups, channels, *places, *taps)
    behind = n + 2 + spatial
    order = (*range(n + 1), *range(n + 2, behind), n + 1, *range(behind, len(seen)))
    moved = tuple(seen[i] for i in order)
    beside: Shape = (groups, *filters, *(1 for _ in places), channels, *taps)
    whole: Shape = (*moved[: n + 1], *filters, *moved[n + 1 :])
    x = add("parted", "view", [x], parted, View("reshape"))
    x = add("windows", "window", [x], seen, Windows(slides, 0.0))
    x = add("moved", "view", [x], moved, View("permute", order))
    if filters:
        x = add("wide", "view", [x], (*moved[: n + 1], 1, *moved[n + 1 :]), View("reshape"))
    if form.transposed:
        lies: Shape = (groups, channels, form.cout // groups, *taps)
        turned = (0, 2, 1, *range(3, len(lies)))
        w = add("parts", "view", [w], lies, View("reshape"))
        w = add("turned", "view", [w], tuple(lies[i] for i in turned), View("permute", turned))
    w = add("taps", "view", [w], beside, View("reshape"))
    product = add("products", "map", [x, w], whole, call("mul", load(0), load(1)))
    rank = len(whole)
    axes = tuple(range(rank - spatial - 1, rank))
    label = "sum" if filters else ""
    total = add(label, "reduce", [product], whole[: axes[0]], Reduction("sum", axes, False))
    if filters:
        add("", "view", [total], node.type.shape, View("reshape"))
    return made
