"""Where the nodes of a graph are drawn: what each reads and its width in, places and lines out.

The layered drawing of Sugiyama and others (1981), with places as Gansner and others (1993) want
them: each node a layer below all that it reads, edges over several layers through a place in each
of them, neighbours ordered by the mean of what they are connected to, lines as straight as widths
allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import networkx

Place = tuple[float, int]
Adjacent = Mapping[str, Sequence[str]]
SWEEPS = 8
BEND = 4.0  # pixels that an edge has for itself where it passes a layer
STRAIGHT = {0: 1.0, 1: 2.0, 2: 8.0}  # how much a line wants to be so, by how many ends are bends


def laid_out(
    reads: Adjacent, widths: Mapping[str, float], gap: float, inputs: Iterable[str]
) -> tuple[dict[str, Place], list[list[Place]], float]:
    """The middle and the layer of each node, the places that each edge runs through, the width."""
    depth = _depths(reads, inputs)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for name, at in depth.items():
        layers[at].append(name)
    wide, near, paths = dict(widths), defaultdict(list), []
    for end, found in reads.items():
        for start in dict.fromkeys(found):
            bends = {at: f"{start}\0{end}\0{at}" for at in range(depth[start] + 1, depth[end])}
            for at, bend in bends.items():
                layers[at].append(bend)
                wide[bend] = BEND
            paths.append([start, *bends.values(), end])
            for upper, lower in pairwise(paths[-1]):
                near[upper].append(lower)
                near[lower].append(upper)
    xs = _positions(layers, near, wide, gap)
    left = min((xs[n] - wide[n] / 2 for n in xs), default=0.0)
    right = max((xs[n] + wide[n] / 2 for n in xs), default=0.0)
    place = {n: (xs[n] - left, i) for i, layer in enumerate(layers) for n in layer}
    return {n: place[n] for n in reads}, [[place[n] for n in path] for path in paths], right - left


def _depths(reads: Adjacent, inputs: Iterable[str]) -> dict[str, int]:
    """The layer of each node; what depends on no input stands as low as its readers allow."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(reads)
    graph.add_edges_from((read, name) for name, found in reads.items() for read in found)
    layers = [list(layer) for layer in networkx.topological_generations(graph)]
    depth = {name: at for at, layer in enumerate(layers) for name in layer}
    given = set(inputs)
    given |= {below for name in given for below in networkx.descendants(graph, name)}
    for name in (n for layer in layers[::-1] for n in layer if n not in given):
        readers = [depth[reader] for reader in graph.successors(name)]
        depth[name] = min(readers) - 1 if readers else depth[name]
    return depth


def _positions(
    layers: list[list[str]], near: Adjacent, widths: Mapping[str, float], gap: float
) -> dict[str, float]:
    level = {name: at for at, layer in enumerate(layers) for name in layer}
    xs: dict[str, float] = {}
    for layer in layers:
        xs |= _packed(layer, dict.fromkeys(layer, (0.0, 1.0)), widths, gap)
    for sweep in range(SWEEPS):  # which order crosses few lines
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            seen = {n: [m for m in near[n] if (level[m] < level[n]) == down] for n in layer}
            wanted = {n: _mean([(xs[m], 1.0) for m in seen[n]], xs[n]) for n in layer}
            layer.sort(key=lambda n: wanted[n][0])
            xs |= _packed(layer, wanted, widths, gap)
    for sweep in range(4 * SWEEPS):  # then how straight they can be in this order
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            pulls = {
                n: [(xs[m], STRAIGHT[("\0" in n) + ("\0" in m)]) for m in near[n]] for n in layer
            }
            wanted = {n: _mean(found, xs[n]) for n, found in pulls.items()}
            xs |= _packed(layer, wanted, widths, gap)
    return xs


def _mean(found: list[tuple[float, float]], otherwise: float) -> tuple[float, float]:
    """Where they all pull to, and how strongly."""
    weight = sum(w for _, w in found)
    return (sum(x * w for x, w in found) / weight, weight) if weight else (otherwise, 0.1)


def _packed(
    layer: list[str],
    wanted: Mapping[str, tuple[float, float]],
    widths: Mapping[str, float],
    gap: float,
) -> dict[str, float]:
    """As near to where they want to be, by least squares, as their order and widths allow.

    Without the room that each needs it is a regression to values that never fall: neighbours that
    would are put where their mean is, together.
    """
    rooms = [0.0]
    for left, right in pairwise(layer):
        rooms.append(rooms[-1] + (widths[left] + widths[right]) / 2 + gap)
    blocks: list[tuple[float, float, int]] = []  # where, how strongly, how many
    for name, room in zip(layer, rooms, strict=True):
        x, weight = wanted[name]
        block = (x - room, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            x, weight, count = blocks.pop()
            both = weight + block[1]
            block = ((x * weight + block[0] * block[1]) / both, both, count + block[2])
        blocks.append(block)
    places = [x for x, _, count in blocks for _ in range(count)]
    return {n: x + room for n, x, room in zip(layer, places, rooms, strict=True)}
