"""Equal kernels are one kernel: what a kernel is, with everything taken off that is only a name.

In: kernels of all regions. Out: for each the first one that is equal to it. A kernel is a function
over slots: buffers are numbered in the order in which they are first used, atoms in the order of
the loop nest. Two kernels with equal keys are printed, built and named once, and launched with the
buffers of whoever launches them. Of products that differ, the programs of their epilogues may still
be equal, and are printed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from kernelwright.expr import Expr, index, inside, load, substitute
from kernelwright.graph import Graph
from kernelwright.lower.attention import AttentionKernel, ScoreKernel
from kernelwright.lower.convolution import ConvKernel
from kernelwright.lower.direct import DirectKernel
from kernelwright.lower.few import FewKernel
from kernelwright.lower.kernel import GemmKernel, Kernel
from kernelwright.lower.tail import TailKernel
from kernelwright.plan import Access, Coordinate, Gemm, Range, element_type


def shared(graph: Graph, kernels: Iterable[Kernel | FewKernel | DirectKernel]) -> dict[str, str]:
    """The name of each kernel, and that of the first one that is equal to it."""
    first: dict[Hashable, str] = {}
    keys = {k.name: key(graph, k) if isinstance(k, Kernel) else k.key for k in kernels}
    return {name: first.setdefault(found, name) for name, found in keys.items()}


def programs(graph: Graph, kernels: Iterable[Kernel], names: dict[str, str]) -> dict[str, str]:
    """For each kernel the one whose program is printed for it: products may differ elsewhere.

    `names` are those of `shared`.
    """
    first: dict[Hashable, str] = {}
    found: dict[str, str] = {}
    for kernel in kernels:
        owner = kernel.of if isinstance(kernel, TailKernel) else kernel
        found[kernel.name] = names[owner.name]
        if isinstance(owner, GemmKernel):
            found[kernel.name] = first.setdefault(_program(graph, owner), owner.name)
    return found


def key(graph: Graph, kernel: Kernel) -> Hashable:
    """What two kernels must have in common to be one."""
    config = kernel.config
    return (
        kernel.template,
        (config.shape, config.constants, config.dynamic_run, config.windows),
        _program(graph, kernel),
        _operands(kernel.gemm) if isinstance(kernel, GemmKernel) else None,
        _attention(graph, kernel) if isinstance(kernel, AttentionKernel) else None,
    )


def _program(graph: Graph, kernel: Kernel) -> Hashable:
    slots, program = _Slots(kernel), kernel.program
    types = [element_type(graph, name) for name in (*kernel.reads, *kernel.places)]
    return (
        tuple(types),
        tuple(program.sizes[a] for a in slots.order),
        (len(program.rows), len(program.outer), len(program.inner), program.strided),
        tuple((s.kind, s.segment, slots.expr(s.expr)) for s in program.stages),
        tuple((s.level, slots.access(s.access), slots.expr(s.expr)) for s in program.stores),
        tuple(by for _, by in program.counts),
        slots.product(kernel),
        slots.convolution(kernel) if isinstance(kernel, ConvKernel) else None,
    )


def _operands(gemm: Gemm) -> Hashable:
    """What a product is made of: its loop, its sizes and strides."""
    operands = tuple(replace(x, buffer="") for x in (gemm.left, gemm.right))
    return gemm.loop, operands, (gemm.batch, gemm.rows, gemm.columns, gemm.depth)


def _attention(graph: Graph, kernel: AttentionKernel) -> Hashable:
    """What an attention is made of: its scores, its sizes and strides."""
    made = kernel.attention
    operands = tuple(replace(x, buffer="") for x in made.operands)
    sizes = (made.batch, made.rows, made.keys, made.depth, made.columns)
    seen = made.weight, made.horizon
    return made.loop, operands, sizes, seen, _program(graph, kernel.scores)


class _Slots:
    """A program with numbers in the place of its buffers and atoms."""

    def __init__(self, kernel: Kernel) -> None:
        program = kernel.program
        self.order = (*program.rows, *program.outer, *program.inner)
        self.atoms = {atom: i for i, atom in enumerate(self.order)}
        written = dict.fromkeys(kernel.places)
        named = dict.fromkeys([*(a.buffer for a in program.loads), *written])
        self.buffers = {name: str(i) for i, name in enumerate(named)}

    def expr(self, expr: Expr) -> Expr:
        return substitute(expr, self._leaf)

    def _leaf(self, e: Expr) -> Expr | None:
        if e.op == "load" and isinstance(e.value, Access):
            return load(self.access(e.value))
        if e.op == "inside" and isinstance(e.value, Range):
            return inside(self.range(e.value))
        if e.op == "index" and isinstance(e.value, Coordinate):
            return index(self.at(e.value))
        return None

    def access(self, access: Access) -> Access:
        within = tuple(self.range(r) for r in access.within)
        return Access(self.buffers[access.buffer], self.at(access.at), within)

    def range(self, part: Range) -> Range:
        return Range(self.at(part.at), part.low, part.high)

    def at(self, at: Coordinate) -> Coordinate:
        strides = sorted((self.atoms[atom], stride) for atom, stride in at.strides)
        return Coordinate(tuple(strides), at.offset)

    def product(self, kernel: Kernel) -> Hashable:
        """Where the product comes in, and where its partial results go."""
        if isinstance(kernel, TailKernel):
            return kernel.grouping, self.expr(kernel.of.given)
        if isinstance(kernel, AttentionKernel | ScoreKernel):
            return self.expr(kernel.given)
        if not isinstance(kernel, GemmKernel):
            return None
        partials = tuple((b.shape, b.dtype) for b in kernel.partials)
        rows = tuple((i, self.buffers[name]) for i, name in kernel.row_partials.items())
        return kernel.gemm.columns, partials, rows, self.expr(kernel.given)

    def convolution(self, kernel: ConvKernel) -> Hashable:
        """What a convolution adds: its loop, its form, and how its tiles lie in the whole."""
        form = kernel.form.unnamed
        outside = tuple(replace(t, atom=self.atoms[t.atom]) for t in kernel.tiled.outside)
        ends = (kernel.tiled.rows, kernel.tiled.elements, kernel.tiled.live)
        masks = tuple(tuple(self.range(r) for r in ranges) for ranges in ends)
        return kernel.conv.loop, form, outside, masks, kernel.laid, self.expr(kernel.given)
