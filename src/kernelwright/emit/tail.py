"""The kernel after a library's product in C++: the program of an epilogue, over memory."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.emit.cpp import camel, fit
from kernelwright.emit.launchers import members
from kernelwright.emit.programs import ProgramPrinter
from kernelwright.lower.tail import TailKernel


@dataclass
class TailPrinter(ProgramPrinter):
    """Prints how a kernel looks at the program of its `owner`, a generated product."""

    kernel: TailKernel

    @property
    def struct(self) -> str:
        return camel(self.kernel.name)

    def print(self) -> str:
        program = f"kw::InMemory<{camel(self.owner)}, {self.storage(self.kernel.of.gemm.product)}>"
        if self.kernel.grouping:
            program = f"kw::{self.kernel.grouping}<{program}>"
        lines = [f"// {self.title()}", f"using {self.struct} = {program};"]
        return "\n".join(part for line in lines for part in fit(line))


def tail_arguments(printer: TailPrinter) -> list[str]:
    """Args `a`: those of the epilogue, and the product."""
    product, *reads = printer.kernel.reads
    first = len(printer.kernel.room)
    return [
        f"  const {printer.struct}::Args a{{",
        "      {",
        *(f"          {value}," for value in members(printer, reads, first + 1)),
        "      },",
        f"      static_cast<const {printer.storage(product)}*>(tensors[{first}]),",
        "  };",
    ]
