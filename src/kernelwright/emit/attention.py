"""An attention in C++: the program of its scores, that of its results, and its launcher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.emit.cpp import camel, dim, expression, fit, function
from kernelwright.emit.epilogue import batch_count, operand_fields
from kernelwright.emit.launchers import arguments, c_function, members, on_device
from kernelwright.emit.programs import ProgramPrinter
from kernelwright.expr import Expr, acc
from kernelwright.lower.attention import AttentionKernel, ScoreKernel


@dataclass
class GivenPrinter(ProgramPrinter):
    """Prints a program for which a product is a field from the start, and no loop nest."""

    def sizes(self) -> list[str]:
        return []

    def begin(self, given: Expr) -> list[str]:
        parameters = [("Fields<V>&", "f"), ("const kw::Vec<V>&", "product")]
        body = [f"f.{self.name(given)} = product;"]
        return function("static void begin(", parameters, body, "template <int V>")


@dataclass
class ScorePrinter(GivenPrinter):
    kernel: ScoreKernel

    @property
    def struct(self) -> str:
        return f"{camel(self.kernel.name)}Scores"

    def functions(self) -> Iterator[list[str]]:
        yield self.begin(self.kernel.given)
        yield self.contribution(0)
        known = {acc(0): "largest", acc(1): "sum"}
        body = [f"return {expression(self.kernel.weight, known)};"]
        yield function("static float weight(", [("float", "largest"), ("float", "sum")], body)


@dataclass
class ResultPrinter(GivenPrinter):
    kernel: AttentionKernel

    def functions(self) -> Iterator[list[str]]:
        yield self.begin(self.kernel.given)
        yield self.store_elements()


def attention_launcher(scores: ScorePrinter, results: ResultPrinter, device: str) -> str:
    kernel, attention = results.kernel, results.kernel.attention
    pointers = [f"tensors[{i}]" for i in range(len(attention.operands))]
    fields = {
        name: operand_fields(results, operand, pointer)
        for name, operand, pointer in zip(
            ("query", "key", "value"), attention.operands, pointers, strict=True
        )
    }
    fields["batch"] = "{" + ", ".join(map(batch_count, attention.batch)) + "}"
    fields["rows"] = dim(attention.rows)
    given = members(scores, scores.kernel.reads, len(pointers))
    struct, storage = camel(kernel.name), results.storage(attention.query.buffer)
    names = (scores.struct, struct, f"{struct}Config")
    template = ", ".join((storage, *names) if device == "cuda" else names)
    lines = [
        *arguments(results, len(kernel.operands)),
        f"  const {scores.struct}::Args scores{{",
        *(f"      {value}," for value in given),
        "  };",
        "  const kw::AttentionOperands g{",
        *(f"      {field},  // {name}" for name, field in fields.items()),
        "  };",
    ]
    sizes = len(results.symbols())
    if device == "cuda":
        lines += on_device(sizes)
        lines += fit(f"  return kw::attend<{template}>(g, scores, a, on);")
    else:
        threads = f"static_cast<int>(numbers[{sizes}])"
        lines += fit(f"  kw::attend<{template}>(g, scores, a, {threads});")
        lines.append("  return 0;")
    return c_function(f"launch_{kernel.name}", lines)
