"""A generated product in C++: its epilogue, its launcher, and the split of its weight alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.emit.cpp import camel, dim, fit, function
from kernelwright.emit.launchers import arguments, c_function, on_device
from kernelwright.emit.programs import ProgramPrinter
from kernelwright.graph import Dim
from kernelwright.lower.kernel import GemmKernel
from kernelwright.lower.steps import DECISIONS, SPLIT_OPERANDS
from kernelwright.plan.model import Gemm, Operand

OPERANDS = ("left", "right")


@dataclass
class EpiloguePrinter(ProgramPrinter):
    """Prints the program that a product's tiles run; the product is a field from the start."""

    kernel: GemmKernel

    def sizes(self) -> list[str]:
        return [
            *super().sizes(),
            f"  static constexpr int kColumns = {self.kernel.gemm.columns};",
            f"  static constexpr bool kByTile = {str(self.kernel.by_tile).lower()};",
        ]

    def functions(self) -> Iterator[list[str]]:
        yield self.touch()
        yield self.begin()
        for index, stage in enumerate(self.program.stages):
            yield self.contribution(index)
            yield self.finish(index)
            if not stage.segment:
                yield self.store_partial(index)
        yield self.store_elements()
        yield self.store_uniform("segment")
        if self.kernel.partials:
            yield self.store_uniform("row")

    def touch(self) -> list[str]:
        """Operands with a value for each column are on the way before the accumulators are full."""
        loads = [a for a in self.program.loads if a.buffer in self.kernel.reads and not a.within]
        buffers = dict.fromkeys(a.buffer for a in loads if self.offset(a) == " + at.element")
        body = [f"kw::touch(a.{self.member(b)} + column);" for b in buffers]
        return function("static void touch(", [("const Args&", "a"), ("int", "column")], body)

    def begin(self) -> list[str]:
        parameters = [("Fields<V>&", "f"), ("const kw::Vec<V>&", "product")]
        body = [f"f.{self.name(self.kernel.given)} = product;"]
        return function("static void begin(", parameters, body, "template <int V>")

    def store_partial(self, index: int) -> list[str]:
        """What a tile gives to a row: the cursor stands on the row and the number of the tile."""
        member = f"{self.member(self.kernel.row_partials[index])}_out"
        tiles = self.kernel.partials[0].shape[-1]
        parameters = [("float", "total"), ("const Args&", "a"), ("kw::Cursor", "at")]
        body = [f"a.{member}[at.row * {tiles} + at.element] = total;"]
        return function(f"static void store_partial(kw::Stage<{index}>", parameters, body)


def product_launchers(printer: EpiloguePrinter) -> list[str]:
    """The launch of the product and, where the weight is split, the split alone for freeze()."""
    kernel = printer.kernel
    return [_launch(printer), *([_freeze(printer)] if kernel.freezes else [])]


def _launch(printer: EpiloguePrinter) -> str:
    kernel, gemm = printer.kernel, printer.kernel.gemm
    given = [*OPERANDS, *(SPLIT_OPERANDS if kernel.splits else ())]
    sizes = len(printer.symbols())
    pointers = {name: _pointer(name, i) for i, name in enumerate(given)}
    fields = {
        "left": operand_fields(printer, gemm.left, pointers["left"]),
        "right": operand_fields(printer, gemm.right, pointers["right"]),
        **{name: pointers.get(name, "nullptr") for name in SPLIT_OPERANDS},
        "batch": "{" + ", ".join(map(batch_count, gemm.batch)) + "}",
        "rows": dim(gemm.rows),
        "columns": str(gemm.columns),
        "depth": batch_count(gemm.depth),
    }
    decided = [f"static_cast<int>(numbers[{sizes + i}])" for i in range(2)]
    decided += [f"numbers[{sizes + 2}]", f"numbers[{sizes + 3}] != 0"]
    lines = [
        *arguments(printer, len(given)),
        "  const kw::GemmOperands g{",
        *(f"      {field},  // {name}" for name, field in fields.items()),
        "  };",
        "  const kw::GemmDecision how{",
        *(f"      {d},  // {name}" for d, name in zip(decided, DECISIONS, strict=True)),
        "  };",
        *on_device(sizes + len(DECISIONS)),
        *fit(f"  return kw::gemm<{_template(kernel, printer.struct)}>(g, how, a, on);"),
    ]
    return c_function(f"launch_{kernel.name}", lines)


def _template(kernel: GemmKernel, struct: str) -> str:
    """The loop, the program, its tile, and, if they are not the plainest, how the operands lie."""
    gemm = kernel.gemm
    arguments = [f"kw::{gemm.loop.symbol}", struct, f"{camel(kernel.name)}Config"]
    batched = gemm.batch != (1, 1)
    if batched or not (gemm.left.along and gemm.right.along):
        majors = ", ".join(_major(gemm, x) for x in (gemm.left, gemm.right))
        arguments.append(f"kw::GemmLayout<{str(batched).lower()}, {majors}>")
    return ", ".join(arguments)


def _major(gemm: Gemm, operand: Operand) -> str:
    return f"kw::{gemm.loop.tiling.major}::{'kDepth' if operand.along else 'kRow'}"


def operand_fields(printer: ProgramPrinter, operand: Operand, address: str) -> str:
    if operand.offset != 0:
        storage = printer.storage(operand.buffer)
        address = f"static_cast<const {storage}*>({address}) + {dim(operand.offset)}"
    strides = (operand.outer, operand.inner, operand.row, operand.depth)
    return "{" + ", ".join([address, *map(dim, strides)]) + "}"


def batch_count(number: Dim) -> str:
    return str(number) if isinstance(number, int) else f"static_cast<int>({dim(number)})"


def _pointer(name: str, index: int) -> str:
    address = f"tensors[{index}]"
    return f"static_cast<unsigned*>({address})" if name == "progress" else address


def _freeze(printer: EpiloguePrinter) -> str:
    """The split of a weight, whose strides are known numbers."""
    kernel, gemm = printer.kernel, printer.kernel.gemm
    weight = operand_fields(printer, gemm.right, "tensors[0]")
    major, fours = _major(gemm, gemm.right), str(kernel.interleaves).lower()
    how = f"{gemm.loop.planes}, {major}, {fours}, {gemm.depth}"
    lines = [
        f"  const kw::Operand weight{weight};",
        *on_device(0),
        f"  return kw::split_all<{how}>(",
        f"      weight, {{1, 1}}, tensors[1], tensors[2], {gemm.columns}, {gemm.depth}, on);",
    ]
    return c_function(f"freeze_{kernel.name}", lines)
