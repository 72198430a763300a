"""Walks over graphs whose nodes are shared: each node once, and as deep as it may be.

In: where to begin, and what follows a node. Out: the nodes, or what was made of them. A value with
two readers is met twice at each step of a plain recursion, so that n steps of `x = x * sigmoid(x)`
take 2^n visits; a long chain of operators would exceed Python's stack besides.

    reach  every node that can be reached, in the order of a plain recursion
    fold   one result for each node, from the results of those that it is made of
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# What a node is made of, and how its result comes from theirs.
Opened = tuple[Sequence[K], Callable[[Sequence[T]], T]]


def reach(roots: Iterable[K], follow: Callable[[K], Iterable[K]]) -> list[K]:
    """Every node once, before those that it leads to."""
    found: dict[K, None] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += list(follow(node))[::-1]
    return list(found)


def fold(root: K, opened: Callable[[K], Opened[K, T]], known: dict[K, T]) -> T:
    """The result for `root`; `known` is read first, and holds every result afterwards."""
    waiting: dict[K, Opened[K, T]] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in known:
            stack.pop()
            continue
        if node not in waiting:
            waiting[node] = opened(node)
        parts, combine = waiting[node]
        missing = [p for p in parts if p not in known]
        if missing:
            stack += missing[::-1]
        else:
            known[node] = combine([known[p] for p in parts])
            stack.pop()
    return known[root]
