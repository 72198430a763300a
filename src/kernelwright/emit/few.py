"""Products of a few rows in an emitted file: the kernel beside the library's call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.emit.launchers import c_function, on_device
from kernelwright.emit.lines import indented
from kernelwright.graph import Graph, product
from kernelwright.plan import Plan, Region

if TYPE_CHECKING:
    from kernelwright.emit.forward import ForwardWriter

FEW_HEADER = "few_rows.cuh"
# From here on all warps have columns of their own; with fewer, those of a block share the depth.
# (H200, eight rows: 26 us shared and 30 us apart at 4096 x 4096, 81 and 76 at 8192 x 8192.)
MANY_COLUMNS = 8192


def few_products(plan: Plan) -> list[Region]:
    return [step for step in plan.library if step.few]


def few_steps(writer: ForwardWriter, region: Region, otherwise: list[str]) -> list[str]:
    """The kernel for up to `region.few` rows, else the library."""
    count = product(region.outputs[0].shape[:-1])
    rows = writer.size(count)
    operands = [writer.value(name) for name in (*region.operands, region.bias) if name]
    operands.append(writer.variable(region.outputs[0].name))
    launch = [
        *writer.allocate(region.outputs),
        *writer.launch_on(_name(region), operands, [rows]),
    ]
    tests = ["GENERATED_GEMM", f"{rows} <= {region.few}"]
    if isinstance(count, int):
        tests.pop()  # the planner has compared them
    return [f"if {' and '.join(tests)}:", *indented(launch), "else:", *indented(otherwise)]


def few_launcher(graph: Graph, region: Region) -> str:
    columns, depth = graph[region.operands[1]].type.shape
    given = [name is not None for name in (*region.operands, region.bias)]
    names = ["left", "right", "bias"]
    fields = [
        f"static_cast<const float*>(tensors[{i}])" if there else "nullptr"
        for i, there in enumerate(given)
    ]
    fields += [f"static_cast<float*>(tensors[{sum(given)}])", "numbers[0]", str(columns)]
    listed = zip([*names, "out", "rows", "columns", "depth"], [*fields, str(depth)], strict=True)
    share = "true" if int(str(columns)) < MANY_COLUMNS else "false"
    lines = [
        "  const kw::FewRows g{",
        *(f"      {field},  // {name}" for name, field in listed),
        "  };",
        *on_device(1),
        f"  return kw::few_rows<{share}>(g, on);",
    ]
    return c_function(f"launch_{_name(region)}", lines)


def _name(region: Region) -> str:
    return f"{region.name}_few_rows"
