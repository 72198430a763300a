"""Shape operators: what only renames indices is a view, what joins values is a cat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.expand.builder import FLOATS, Builder, Lowering
from kernelwright.expr import const
from kernelwright.graph import Dim, Node, Scalar, Shape, Slide, TensorType, as_dim, quotient

RESHAPES = (
    "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "detach", "alias", "view_as", "reshape_as",
)  # fmt: skip


def _reshape(builder: Builder, node: Node) -> str | None:
    return builder.view("reshape", node.args[0].name, node.type.shape)


def _permute(builder: Builder, node: Node) -> str | None:
    value = node.args[0].name
    rank = len(builder.shape(value))
    dims = tuple(d % rank for d in node.args[1])
    return builder.view("permute", value, node.type.shape, dims)


def _transpose(builder: Builder, node: Node) -> str | None:
    value = node.args[0].name
    dims = list(range(len(builder.shape(value))))
    first, second = (node.args[1], node.args[2]) if len(node.args) > 2 else (-2, -1)
    if len(dims) >= 2:
        dims[first], dims[second] = dims[second], dims[first]
    return builder.view("permute", value, node.type.shape, dims)


def _expand(builder: Builder, node: Node) -> str | None:
    return builder.view("expand", node.args[0].name, node.type.shape)


def _broadcast_tensors(builder: Builder, node: Node) -> str | None:
    values = [ref.name for ref in node.args[0]]
    expanded = {
        f"r{i}": builder.view("expand", v, node.type.shape, label=f"operand{i}")
        for i, v in enumerate(values)
    }
    return builder.several(**expanded)


# ---- slices ----------------------------------------------------------------------------------


def _place(index: Any, size: Dim) -> Dim | None:
    """An index as torch counts it, from the end where it is negative.

    None if it is known only when elements are.
    """
    if index is None:
        return 0
    if isinstance(index, Scalar):
        return None
    if not isinstance(index, int):
        return as_dim(index)
    if isinstance(size, int):
        return min(max(index + size if index < 0 else index, 0), size)
    return as_dim(index + size) if index < 0 else index


def _slice(builder: Builder, node: Node) -> str | None:
    """slice(x, dim, start, end, step): the result's own size says where it ends."""
    value, dim, start, _, step = node.args
    shape = builder.shape(value.name)
    axis = dim % len(shape)
    first = _place(start, shape[axis])
    if first is None or not isinstance(step, int):
        return None
    return builder.slice(value.name, axis, first, node.type.shape[axis], step)


def _select(builder: Builder, node: Node) -> str | None:
    value, dim, index = node.args
    shape = builder.shape(value.name)
    axis = dim % len(shape)
    place = _place(index, shape[axis])
    if place is None:
        return None
    chosen = builder.slice(value.name, axis, place, 1, label="chosen")
    return builder.view("reshape", chosen, node.type.shape)


def _narrow(builder: Builder, node: Node) -> str | None:
    value, dim, start, length = node.args
    shape = builder.shape(value.name)
    axis = dim % len(shape)
    first = _place(start, shape[axis])
    return None if first is None else builder.slice(value.name, axis, first, length)


def _parts(builder: Builder, value: str, axis: int, sizes: Sequence[Dim]) -> str:
    """Slices one after the other, as the results of one operator."""
    start: Dim = 0
    parts = {}
    for i, size in enumerate(sizes):
        parts[f"r{i}"] = builder.slice(value, axis, start, size, label=f"part{i}")
        start = as_dim(start + size)
    return builder.several(**parts)


def _split(builder: Builder, node: Node) -> str | None:
    """split(x, size or sizes, dim)."""
    value, sizes, dim = node.args
    axis = dim % len(builder.shape(value.name))
    if isinstance(sizes, tuple):
        return _parts(builder, value.name, axis, sizes)
    return _equal_parts(builder, node, value.name, axis, sizes)


def _equal_parts(builder: Builder, node: Node, value: str, axis: int, size: Dim) -> str:
    """Parts of one size, but for the last: how long that is, its own shape says."""
    parts = {}
    for name in builder.graph.users[node.name]:
        part = builder.graph[name]
        index = part.args[1]
        start, length = as_dim(size * index), part.type.shape[axis]
        parts[f"r{index}"] = builder.slice(value, axis, start, length, label=f"part{index}")
    return builder.several(**parts)


def _chunk(builder: Builder, node: Node) -> str | None:
    value, chunks, dim = node.args
    shape = builder.shape(value.name)
    axis, total = dim % len(shape), shape[dim]
    if not isinstance(total, int):
        return None
    return _equal_parts(builder, node, value.name, axis, -(-total // chunks))


def _unbind(builder: Builder, node: Node) -> str | None:
    value, dim = node.args
    shape = builder.shape(value.name)
    axis, total = dim % len(shape), shape[dim]
    if not isinstance(total, int):
        return None
    rest = (*shape[:axis], *shape[axis + 1 :])
    parts = {}
    for i in range(total):
        chosen = builder.slice(value.name, axis, i, 1, label=f"chosen{i}")
        parts[f"r{i}"] = builder.view("reshape", chosen, rest, label=f"part{i}")
    return builder.several(**parts)


# ---- values joined ---------------------------------------------------------------------------


def _join(builder: Builder, values: Sequence[str], axis: int, node: Node) -> str | None:
    """One after the other; parts of other types, and those that may be empty, stay with ATen."""
    sizes = [builder.shape(v)[axis] for v in values]
    if any(builder.type(v).dtype != node.type.dtype for v in values):
        return None
    if node.type.dtype not in FLOATS or not (_known(sizes) or _proportional(sizes)):
        return None
    return builder.cat(values, axis)


def _known(sizes: Sequence[Dim]) -> bool:
    return all(isinstance(s, int) and s > 0 for s in sizes)


def _proportional(sizes: Sequence[Dim]) -> bool:
    """Multiples of one symbolic size: none is zero unless all are."""
    return all(not isinstance(s, int) and quotient(s, sizes[0]) is not None for s in sizes)


def _cat(builder: Builder, node: Node) -> str | None:
    refs, dim = node.args
    rank = len(node.type.shape)
    # torch leaves empty tensors of one axis out, whatever the others are.
    values = [r.name for r in refs if builder.shape(r.name) != (0,) or rank == 1]
    axis = dim % rank
    values = [v for v in values if builder.shape(v)[axis] != 0]
    return _join(builder, values, axis, node) if values else None


def _stack(builder: Builder, node: Node) -> str | None:
    refs, dim = node.args
    axis = dim % len(node.type.shape)
    values = []
    for i, ref in enumerate(refs):
        shape = builder.shape(ref.name)
        wide: Shape = (*shape[:axis], 1, *shape[axis:])
        values.append(builder.view("reshape", ref.name, wide, label=f"part{i}"))
    return _join(builder, values, axis, node)


def _hstack(builder: Builder, node: Node) -> str | None:
    (refs,) = node.args
    values = [
        builder.view("reshape", ref.name, builder.shape(ref.name) or (1,), label=f"part{i}")
        for i, ref in enumerate(refs)
    ]
    return _join(builder, values, 0 if len(node.type.shape) == 1 else 1, node)


def _slice_backward(builder: Builder, node: Node) -> str | None:
    """slice_backward(g, sizes, dim, start, end, step): g at its places, zeros at all others."""
    cotangent, _, dim, start, _, step = node.args
    axis = dim % len(node.type.shape)
    return _scattered(builder, node, cotangent.name, axis, start, step)


def _select_backward(builder: Builder, node: Node) -> str | None:
    """select_backward(g, sizes, dim, index)."""
    cotangent, _, dim, place = node.args
    axis, shape = dim % len(node.type.shape), node.type.shape
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    chosen = builder.view("reshape", cotangent.name, one, label="chosen")
    return _scattered(builder, node, chosen, axis, place, 1)


def _scattered(
    builder: Builder, node: Node, value: str, axis: int, start: Any, step: int
) -> str | None:
    """A value at every `step`th place of an axis from `start` on; the node says how long that is.

    Behind each stand zeros in the meantime, along an axis of their own.
    """
    extent, count = node.type.shape[axis], builder.shape(value)[axis]
    first = _place(start, extent)
    if not isinstance(extent, int) or not isinstance(first, int) or not isinstance(count, int):
        return None
    if node.type.dtype not in FLOATS or count == 0:
        return None
    if step > 1 and count > 1:
        wide = (*builder.shape(value)[:axis], count, 1, *builder.shape(value)[axis + 1 :])
        value = builder.view("reshape", value, wide, label="parted")
        value = _padded(builder, value, axis + 1, 0, step - 1)
        joined = (*wide[:axis], count * step, *wide[axis + 2 :])
        value = builder.view("reshape", value, joined, label="joined")
        count = min(count * step, extent - first)
        value = builder.slice(value, axis, 0, count, label="inside")
    return builder.copied(_padded(builder, value, axis, first, extent - first - count))


def _padded(
    builder: Builder, value: str, axis: int, before: int, after: int, filler: float = 0.0
) -> str:
    """So many more places at the ends of an axis, or fewer."""
    shape, dtype = builder.shape(value), builder.type(value).dtype
    extent = shape[axis]
    first, last = max(-before, 0), max(-after, 0)
    if first or last:
        assert isinstance(extent, int)
        value = builder.slice(value, axis, first, extent - first - last, label=f"axis{axis}")
    parts = [value]
    for where, width in (("before", before), ("after", after)):
        if width > 0:
            type = TensorType((*shape[:axis], width, *shape[axis + 1 :]), dtype)
            filled = builder.map(const(filler), [], type, label=where)
            parts = [filled, *parts] if where == "before" else [*parts, filled]
    return builder.cat(parts, axis, label=f"axis{axis}")


def _pad(builder: Builder, node: Node) -> str | None:
    """pad(x, (before, after) of the last axis, of the one before it ..., mode, value)."""
    value, pads = node.args[0].name, node.args[1]
    mode, filler = node.args[2:] if node.op == "pad" else ("constant", node.args[2])
    filler = 0.0 if filler is None else filler
    rank, dtype = len(builder.shape(value)), node.type.dtype
    numbers = isinstance(filler, int | float) and all(isinstance(p, int) for p in pads)
    if mode != "constant" or not numbers or dtype not in FLOATS:
        return None
    for i in range(len(pads) // 2):
        axis, before, after = rank - 1 - i, pads[2 * i], pads[2 * i + 1]
        shape = builder.shape(value)
        if before == after == 0:
            continue
        if not isinstance(shape[axis], int) or shape[axis] + min(before, 0) + min(after, 0) <= 0:
            return None
        value = _padded(builder, value, axis, before, after, filler)
    return builder.copied(value)


def _roll(builder: Builder, node: Node) -> str | None:
    """roll(x, shifts, dims): the end of each axis in front of its beginning."""
    value, shifts, dims = node.args[0].name, node.args[1], node.args[2]
    if node.type.dtype not in FLOATS or len(shifts) != len(dims):
        return None
    for shift, dim in zip(shifts, dims, strict=True):
        shape = builder.shape(value)
        axis, size = dim % len(shape), shape[dim]
        if not isinstance(size, int) or not isinstance(shift, int):
            return None
        if size and shift % size:
            first = size - shift % size
            end = builder.slice(value, axis, first, shift % size, label="end")
            beginning = builder.slice(value, axis, 0, first, label="beginning")
            value = builder.cat([end, beginning], axis, label=f"axis{axis}")
    return builder.copied(value)


def _flip(builder: Builder, node: Node) -> str | None:
    """flip(x, dims): one window along each axis, which looks at it backwards."""
    value, dims = node.args[0].name, node.args[1]
    shape, dtype = node.type.shape, node.type.dtype
    axes = sorted({d % len(shape) for d in dims}) if shape else []
    sizes = [shape[a] for a in axes]
    if dtype not in FLOATS or not _known(sizes):
        return None
    if not axes:
        return builder.copied(value)
    slides = [
        Slide(a, n, 1, -1, 1 - n) for a, n in zip(axes, sizes, strict=True) if isinstance(n, int)
    ]
    seen = builder.window(value, (1,) * len(axes), slides, 0.0, label="backwards")
    rank, behind = len(shape), iter(range(len(shape), len(shape) + len(axes)))
    order = [next(behind) if a in axes else a for a in range(rank)] + axes
    wide = tuple(builder.shape(seen)[a] for a in order)
    turned = builder.view("permute", seen, wide, order, label="turned")
    return builder.copied(builder.view("reshape", turned, shape, label="flipped"))


# ---- repeats and shuffles --------------------------------------------------------------------


def _repeat(builder: Builder, node: Node) -> str | None:
    """repeat(x, times): an axis in front of each, along which nothing changes."""
    value, times = node.args
    shape = builder.shape(value.name)
    shape = (*((1,) * (len(times) - len(shape))), *shape)
    single = tuple(d for size in shape for d in (1, size))
    wide = tuple(d for count, size in zip(times, shape, strict=True) for d in (count, size))
    parted = builder.view("reshape", value.name, single, label="parted")
    repeated = builder.view("expand", parted, wide, label="repeated")
    return builder.copied(builder.view("reshape", repeated, node.type.shape, label="joined"))


def _pixel_shuffle(builder: Builder, node: Node) -> str | None:
    """(..., c r r, h, w) -> (..., c, h r, w r)."""
    value, factor = node.args
    *rest, channels, height, width = builder.shape(value.name)
    n, kept = len(rest), as_dim(channels // (factor * factor))
    split = (*rest, kept, factor, factor, height, width)
    parted = builder.view("reshape", value.name, split, label="parted")
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    moved = builder.view("permute", parted, tuple(split[d] for d in order), order, label="moved")
    return builder.view("reshape", moved, node.type.shape)


def _pixel_unshuffle(builder: Builder, node: Node) -> str | None:
    """(..., c, h r, w r) -> (..., c r r, h, w)."""
    value, factor = node.args
    *rest, channels, height, width = builder.shape(value.name)
    n = len(rest)
    split = (*rest, channels, as_dim(height // factor), factor, as_dim(width // factor), factor)
    parted = builder.view("reshape", value.name, split, label="parted")
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    moved = builder.view("permute", parted, tuple(split[d] for d in order), order, label="moved")
    return builder.view("reshape", moved, node.type.shape)


LOWERINGS: dict[str, Lowering] = {
    **{name: _reshape for name in RESHAPES},
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_tensors": _broadcast_tensors,
    "slice": _slice,
    "slice_backward": _slice_backward,
    "select": _select,
    "select_backward": _select_backward,
    "narrow": _narrow,
    "split": _split,
    "split.sizes": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "stack": _stack,
    "hstack": _hstack,
    "pad": _pad,
    "constant_pad_nd": _pad,
    "roll": _roll,
    "flip": _flip,
    "repeat": _repeat,
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
}
