"""Where the nodes of a graph are drawn: what each reads and its width in, places and lines out.

The layered drawing of Sugiyama and others (1981): each node a layer below all that it reads, edges
over several layers through a place in each of them, neighbours ordered by the mean of what they are
connected to, then moved towards that mean as far as widths allow.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import networkx

Place = tuple[float, int]
Adjacent = Mapping[str, Sequence[str]]
SWEEPS = 6
BEND = 12.0  # pixels that an edge has for itself where it passes a layer


def laid_out(
    reads: Adjacent, widths: Mapping[str, float], gap: float
) -> tuple[dict[str, Place], list[list[Place]], float]:
    """The middle and the layer of each node, the places that each edge runs through, the width."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(reads)
    graph.add_edges_from((read, name) for name, found in reads.items() for read in found)
    layers = [list(layer) for layer in networkx.topological_generations(graph)]
    depth = {name: at for at, layer in enumerate(layers) for name in layer}
    wide = dict(widths)
    above: dict[str, list[str]] = defaultdict(list)
    paths = []
    for start, end in graph.edges:
        path = [start]
        for at in range(depth[start] + 1, depth[end]):
            bend = f"{start}\0{end}\0{at}"
            layers[at].append(bend)
            wide[bend] = BEND
            path.append(bend)
        path.append(end)
        for upper, lower in zip(path, path[1:], strict=False):
            above[lower].append(upper)
        paths.append(path)
    below: dict[str, list[str]] = defaultdict(list)
    for lower, uppers in above.items():
        for upper in uppers:
            below[upper].append(lower)
    xs = _positions(layers, above, below, wide, gap)
    left = min(xs[n] - wide[n] / 2 for n in xs)
    right = max(xs[n] + wide[n] / 2 for n in xs)
    at = {n: (xs[n] - left, i) for i, layer in enumerate(layers) for n in layer}
    places = {name: at[name] for name in reads}
    return places, [[at[n] for n in path] for path in paths], right - left


def _positions(
    layers: list[list[str]],
    above: Adjacent,
    below: Adjacent,
    widths: Mapping[str, float],
    gap: float,
) -> dict[str, float]:
    xs: dict[str, float] = {}
    for layer in layers:
        _pack(layer, dict.fromkeys(layer, 0.0), widths, gap, xs)
    for sweep in range(2 * SWEEPS):
        downwards = sweep % 2 == 0
        near = above if downwards else below
        for layer in layers if downwards else layers[::-1]:
            wanted = {n: _mean([xs[m] for m in near.get(n, ())], xs[n]) for n in layer}
            if sweep < SWEEPS:
                layer.sort(key=lambda n: wanted[n])
            _pack(layer, wanted, widths, gap, xs)
    return xs


def _mean(found: list[float], otherwise: float) -> float:
    return statistics.fmean(found) if found else otherwise


def _pack(
    layer: list[str],
    wanted: Mapping[str, float],
    widths: Mapping[str, float],
    gap: float,
    xs: dict[str, float],
) -> None:
    """As near to where they want to be as their order and their widths allow."""
    found: list[float] = []
    for i, name in enumerate(layer):
        x = wanted[name]
        if i:
            room = (widths[layer[i - 1]] + widths[name]) / 2 + gap
            x = max(x, found[-1] + room)
        found.append(x)
    shift = statistics.fmean(x - wanted[name] for x, name in zip(found, layer, strict=True))
    for x, name in zip(found, layer, strict=True):
        xs[name] = x - shift
