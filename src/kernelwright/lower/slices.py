"""Slices on the CPU: a library convolution and the kernels after it take turns on a few samples.

In: a Plan. Out: for each convolution whose result only kernels read that treat samples apart, these
kernels. They run on a slice of the batch while its part of the convolution's result is in the
cache, and the whole of it never exists: the memory of a slice is used again for the next. That
matters more than the cache does, since large blocks come fresh from the system in every call, at
the price of a fault for each page: 2.7 us on a virtual machine (Cascade Lake), where ten megabytes
take seven milliseconds before anything is computed. One core of a Xeon, 8 to 64 channels at 64 by
64, batch 16: the convolution alone takes 25 ms as a whole and 8 in slices of 2 MB. The library
brings its weight into another order for every slice, so one of a large weight has larger slices;
from 4 MB up to 8 it takes as long in slices as it does as a whole, where pages cost little. Slices
are of equal size, but for one sample, and none is of a single sample where the library minds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.graph import Dim, Graph, hint, product
from kernelwright.plan.model import Access, Plan, Region
from kernelwright.targets.target import LibraryConvolutions, Target

SLICE_BYTES = 2 << 20  # of the convolution's result, for each thread
LARGE_BYTES = 4 << 20  # of the whole of it, from which on it is made in slices
WEIGHTS = 16  # of its size at least, a slice has
# By ATen's rule a single sample goes to oneDNN if the convolution has groups or a large window, or
# the sample more numbers than this in its first three axes. Otherwise it is unfolded: four times 16
# to 32 channels over 32 x 32 x 32, one by one, take 177 ms and not 22.
NUMBERS, LARGE_WINDOW = 20480, 3
# Up to so many bytes of a sample's result a second one beside it is worth its place: oneDNN gets
# ready once for both (eight groups, 64 to 128 channels over 80 x 80: 6.5 ms one by one, 6.0 in
# pairs, 5.6 at once; 64 to 128 over 128 x 128: 67 and 52).
PAIR_BYTES = 12 << 20


@dataclass(frozen=True)
class Sliced:
    """The convolution `product` and `kernels`, in turns on slices of the batch.

    A sample of the product has so many bytes `each`, a slice as many for every thread, and at least
    the `fewest` samples; `inside` are the results of kernels that only others of them read, which
    exist for a slice at a time.
    """

    product: str
    kernels: tuple[str, ...]
    each: int
    slice: int
    fewest: int
    inside: tuple[str, ...]

    def __str__(self) -> str:
        return f"takes turns with {' and '.join(self.kernels)} on slices of the batch"


def slices(plan: Plan, target: Target) -> tuple[Sliced, ...]:
    found: list[Sliced] = []
    taken: set[str] = set()
    for place, region in enumerate(plan.regions):
        if region.kind == "contract" and _is_convolution(plan.graph, region):
            made = _group(plan, place, taken, target.convolutions)
            if made is not None:
                found.append(made)
                taken |= {made.product, *made.kernels}
    return tuple(found)


def _is_convolution(graph: Graph, region: Region) -> bool:
    """Whether its samples are those of the batch, one by one, and its input is read as it lies.

    In channels_last it is a view, which begins with samples as well.
    """
    of = region.contraction
    if of is None or of.is_product or len(graph.symbols) != 1 or region.call is None:
        return False
    batch, left = region.outputs[0].shape[0], region.operands[0]
    known = all(isinstance(d, int) for d in region.outputs[0].shape[1:])
    samples = len(of.left) == len(of.right) and [str(batch)] == list(graph.symbols)
    plain = graph[left].op != "view" or bool(region.call.order)
    return samples and known and plain and graph[left].type.shape[0] == batch


def _group(
    plan: Plan, place: int, taken: set[str], library: LibraryConvolutions | None
) -> Sliced | None:
    """The kernels behind a convolution that can run on a slice of it; None: not all who read it."""
    graph, region = plan.graph, plan.regions[place]
    batch, value = region.outputs[0].shape[0], region.outputs[0].name
    made, kernels, last = {value}, list[Region](), place
    for later, other in enumerate(plan.regions[place + 1 :], start=place + 1):
        read = {graph.base(r) for r in other.reads} & made
        if not read:
            continue
        plain = other.name not in taken and read <= set(other.reads)
        if not plain or not _slices(graph, other, batch, made):
            break
        kernels.append(other)
        made |= {b.name for b in other.outputs}
        last = later
    names = {k.name for k in kernels}
    outside = [r for r in plan.regions if r.name not in names]
    asked = {graph.base(r) for other in outside for r in other.reads}
    asked |= {graph.base(name) for name in graph.results}
    if not kernels or value in asked or _read_early(plan, place, last, names):
        return None
    itemsize = region.outputs[0].dtype.itemsize
    each = hint(product(region.outputs[0].shape[1:])) * itemsize
    weight = hint(graph[region.operands[1]].type.numel) * itemsize
    inside = tuple(b.name for k in kernels for b in k.outputs if b.name not in asked)
    slice = max(SLICE_BYTES, WEIGHTS * weight)
    pays = each <= PAIR_BYTES or _is_small(graph, region)
    fewest = 2 if library is not None and library.minds_one and pays else 1
    return Sliced(region.name, tuple(k.name for k in kernels), each, slice, fewest, inside)


def _is_small(graph: Graph, region: Region) -> bool:
    """Whether a sample by itself is too small for the library's own kernels."""
    (_, *sample), weight = (graph[name].type.shape for name in region.operands[:2])
    assert region.contraction is not None
    groups = hint(region.contraction.sizes[1])
    large = all(hint(n) > LARGE_WINDOW for n in weight[-2:])
    return groups == 1 and not large and hint(product(tuple(sample[:3]))) <= NUMBERS


def _read_early(plan: Plan, place: int, last: int, names: set[str]) -> bool:
    """Whether somebody else needs a result of these kernels before the last of them has run."""
    graph = plan.graph
    made = {b.name for r in plan.regions if r.name in names for b in r.outputs}
    between = [r for r in plan.regions[place + 1 : last] if r.name not in names]
    return any(graph.base(name) in made for r in between for name in r.reads)


def _slices(graph: Graph, region: Region, batch: Dim, made: set[str]) -> bool:
    """Whether a kernel treats samples apart, and all that it reads and writes begins with them."""
    program = region.program
    if program is None or not program.rows or program.sizes[program.rows[0]] != batch:
        return False
    first = program.rows[0]
    if not program.is_local(first):
        return False
    stores = all(_begins(graph, s.access, first, batch) for s in program.stores)
    return stores and all(
        _begins(graph, a, first, batch) and _is_plain(graph, a.buffer, made)
        if first in a.atoms
        else graph[a.buffer].type.shape[:1] != (batch,)  # a sample of its own is no slice of it
        for a in program.loads
    )


def _begins(graph: Graph, access: Access, first: int, batch: Dim) -> bool:
    """Whether a buffer has a sample after the other, each dense."""
    shape = graph[access.buffer].type.shape
    return shape[:1] == (batch,) and access.stride(first) == product(shape[1:])


def _is_plain(graph: Graph, buffer: str, made: set[str]) -> bool:
    """Whether a part of it can be handed to a kernel: its address is known by its shape."""
    return buffer in made or graph[buffer].op not in ("view", "contract", "opaque")
