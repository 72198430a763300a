"""Whose memory a value lies in, and which values share none of it.

In: a Graph of primitives and names in it. Out: the values that one is, step by step, a view of; and
whether two of them have no element in common, whatever the sizes.
"""

from __future__ import annotations

import torch

from kernelwright.graph import Call, Graph, View
from kernelwright.interpret import resolve

MOST_PLACES = 1 << 16  # of an axis, which are compared one by one


def views(call: Call) -> bool:
    """Whether a call gives views of its first operand, as diagonal does."""
    returned = resolve(call.target)._schema.returns
    return bool(returned) and returned[0].alias_info is not None


def chain(graph: Graph, name: str) -> list[str]:
    """A value, what it is a view of, and so on."""
    found, inner = [name], seen_through(graph, name)
    while inner is not None:
        found.append(inner)
        inner = seen_through(graph, inner)
    return found


def seen_through(graph: Graph, name: str) -> str | None:
    """What a value is a view of: a call that stays with ATen may give one, as diagonal."""
    node = graph[name]
    if node.op == "view":
        return node.inputs[0]
    call = node.payload
    if node.op != "opaque" or not isinstance(call, Call) or call.target == "getitem":
        return None
    return node.inputs[0] if views(call) and node.inputs else None


def may_be_view(graph: Graph, name: str) -> bool:
    """Whether a value may be a view: a call that is several may end in one of what it made."""
    node = graph[name]
    if node.op != "opaque":
        return node.op == "view"
    call = node.payload
    if isinstance(call, Call) and call.target == "getitem":
        call = graph[node.inputs[0]].payload
    if not isinstance(call, Call):
        return True
    kernel = "CompositeImplicitAutograd"
    operator = resolve(call.target).name()
    return views(call) or torch._C._dispatch_has_kernel_for_dispatch_key(operator, kernel)


def apart(graph: Graph, one: str, other: str) -> bool:
    """Whether two values have no element in common, for all that can be told."""
    left, right = _steps(graph, one), _steps(graph, other)
    if any(_one_of_several(graph, of[-1]) for of in (left, right)):
        return False
    common = next((name for name in left if name in right), None)
    if common is None:
        return True
    if common in (left[0], right[0]):
        return False
    places = [_places(graph, of[of.index(common) - 1]) for of in (left, right)]
    if places[0] is None or places[1] is None:
        return False
    (axis, here), (other_axis, there) = places[0], places[1]
    return axis == other_axis and not set(here) & set(there)


def _steps(graph: Graph, name: str) -> list[str]:
    """The chain of a value, without views that are all of what they are of."""

    def is_whole(name: str) -> bool:
        node, view = graph[name], graph[name].payload
        plain = isinstance(view, View) and view.kind in ("reshape", "expand")
        return plain and graph[node.inputs[0]].type.shape == node.type.shape

    return [n for n in chain(graph, name) if not is_whole(n)]


def _one_of_several(graph: Graph, name: str) -> bool:
    """Whether this is one of the views that a call gives of one tensor."""
    call = graph[name].payload
    if not isinstance(call, Call) or call.target != "getitem":
        return False
    made = graph[graph[name].inputs[0]].payload
    return not isinstance(made, Call) or views(made)


def _places(graph: Graph, name: str) -> tuple[int, range] | None:
    """The axis along which a value is a slice, and the places; None where these are not known."""
    node, view = graph[name], graph[name].payload
    if not isinstance(view, View) or view.kind != "slice":
        return None
    (axis,) = view.dims
    size = node.type.shape[axis]
    if not isinstance(view.start, int) or not isinstance(size, int) or size > MOST_PLACES:
        return None
    return axis, range(view.start, view.start + view.step * size, view.step)
