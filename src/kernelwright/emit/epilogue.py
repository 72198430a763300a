"""A generated product in C++: its epilogue, its launcher, and the split of its weight alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.emit.cpp import ProgramPrinter, camel, function
from kernelwright.emit.launchers import arguments, c_function, on_device
from kernelwright.lower import GemmKernel
from kernelwright.lower.steps import SPLIT_OPERANDS

MAIN_LOOPS = {
    "split": "SplitFloat",
    "rounded": "RoundedFloat",
    "bfloat16": "Bfloat16",
    "float16": "Float16",
}
OPERANDS = ("left", "right")


@dataclass
class EpiloguePrinter(ProgramPrinter):
    """Prints the program that a product's tiles run; the product is a field from the start."""

    kernel: GemmKernel

    def sizes(self) -> list[str]:
        return [
            *super().sizes(),
            f"  static constexpr int kColumns = {self.kernel.gemm.columns};",
        ]

    def functions(self) -> Iterator[list[str]]:
        yield self.touch()
        yield self.begin()
        for index, stage in enumerate(self.program.stages):
            yield self.contribution(index)
            yield self.finish(index) if stage.segment else self.store_partial(index)
        yield self.store_elements()
        yield self.store_uniform("segment")

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
    return [_launch(printer), *([_freeze(kernel)] if kernel.splits else [])]


def _launch(printer: EpiloguePrinter) -> str:
    kernel, struct = printer.kernel, camel(printer.kernel.name)
    operands = [*OPERANDS, *(SPLIT_OPERANDS if kernel.splits else ())]
    sizes = len(printer.symbols())
    gemm = kernel.gemm
    pointers = {name: _pointer(name, i) for i, name in enumerate(operands)}
    fields = [
        *(pointers.get(name, "nullptr") for name in (*OPERANDS, *SPLIT_OPERANDS)),
        f"{struct}::rows(a)",
        str(gemm.columns),
        str(gemm.depth),
        f"numbers[{sizes}] != 0" if kernel.splits else "false",
    ]
    names = (*OPERANDS, *SPLIT_OPERANDS, "rows", "columns", "depth", "frozen")
    listed = [f"      {f},  // {n}" for n, f in zip(names, fields, strict=True)]
    loop = MAIN_LOOPS[gemm.loop.name]
    lines = [
        *arguments(printer, len(operands)),
        "  const kw::GemmOperands g{",
        *listed,
        "  };",
        *on_device(sizes + int(kernel.splits)),
        f"  return kw::gemm<kw::{loop}, {struct}, {struct}Config>(g, a, on);",
    ]
    return c_function(f"launch_{kernel.name}", lines)


def _pointer(name: str, index: int) -> str:
    address = f"tensors[{index}]"
    return f"static_cast<unsigned*>({address})" if name == "progress" else address


def _freeze(kernel: GemmKernel) -> str:
    gemm = kernel.gemm
    operands = f"tensors[0], tensors[1], tensors[2], {gemm.columns}, {gemm.depth}"
    how = f"{gemm.loop.planes}, {str(kernel.interleaves).lower()}"
    lines = [*on_device(0), f"  return kw::split_rows<{how}>({operands}, on);"]
    return c_function(f"freeze_{kernel.name}", lines)
