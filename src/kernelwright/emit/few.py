"""The launchers of the kernels that stand beside the library's products and convolutions."""

from __future__ import annotations

from kernelwright.emit.cpp import fit
from kernelwright.emit.direct import direct_launcher
from kernelwright.emit.launchers import c_function, on_device
from kernelwright.lower.few import BesideKernel, DirectKernel, FewKernel, HostKernel, ThinKernel

# From here on all warps have columns of their own; with fewer, those of a block share the depth.
# (H200, eight rows: 26 us shared and 30 us apart at 4096 x 4096, 81 and 76 at 8192 x 8192.)
MANY_COLUMNS = 8192


# Fields of kw::ThinOperands behind the operands, and their types.
THIN_FIELDS = {
    "out": "float",
    "left_halves": "uint16_t",
    "left_scales": "kw::RowScale",
    "sums": "float",
    "right_scales": "kw::RowScale",
}


def few_launcher(kernel: BesideKernel) -> str:
    if isinstance(kernel, HostKernel):
        return _host(kernel)
    if isinstance(kernel, DirectKernel):
        return direct_launcher(kernel)
    assert isinstance(kernel, FewKernel)
    return _thin(kernel) if isinstance(kernel, ThinKernel) else _few_rows(kernel)


def _host(kernel: HostKernel) -> str:
    """A product of any sizes, its operands from where their views begin."""
    known = {number: f"numbers[{i}]" for i, number in enumerate(kernel.numbers)}
    n = {name: str(known.get(d, d)) for name, d in kernel.dims.items()}
    lines = []
    for place, (side, count) in enumerate((("left", n["rows"]), ("right", n["columns"]))):
        offset = n[f"{side}_offset"]
        start = f"static_cast<const float*>(tensors[{place}])" + f" + {offset}" * (offset != "0")
        strides = f"{n[f'{side}_row']}, {n[f'{side}_depth']}"
        lines += fit(f"  const kw::Matrix {side}{{{start}, {count}, {strides}}};")
    for axis in ("outer", "inner"):
        strides = f"{n[f'left_{axis}']}, {n[f'right_{axis}']}"
        lines += fit(f"  const kw::BatchAxis {axis}{{{n[axis]}, {strides}}};")
    bias = "static_cast<const float*>(tensors[2])" if kernel.biased else "nullptr"
    out = f"static_cast<float*>(tensors[{2 + kernel.biased}])"
    lines += fit(f"  const kw::Product g{{left, right, {bias}, {out}, {n['depth']}}};")
    threads = f"static_cast<int>(numbers[{len(known)}])"
    lines += [f"  kw::multiply(g, outer, inner, {threads});", "  return 0;"]
    return c_function(f"launch_{kernel.name}", lines)


def _few_rows(kernel: FewKernel) -> str:
    out = f"static_cast<float*>(tensors[{2 + kernel.biased}])"
    fields = {"out": out, "rows": "numbers[0]", **_sizes(kernel)}
    share = "true" if kernel.columns < MANY_COLUMNS else "false"
    return _launcher(kernel, "FewRows", fields, 1, f"few_rows<{share}>")


def _thin(kernel: ThinKernel) -> str:
    """The result comes last among the tensors, behind what the kernel works with."""
    first, fields = 2 + kernel.biased, {}
    for name, kind in THIN_FIELDS.items():
        at = first + (list(THIN_FIELDS).index(name) - 1) % len(THIN_FIELDS)
        fields[name] = f"static_cast<{kind}*>(tensors[{at}])"
    fields |= {"rows": "static_cast<int>(numbers[0])", **_sizes(kernel)}
    fields["parts"] = "static_cast<int>(numbers[1])"
    return _launcher(
        kernel, "ThinOperands", fields, 2, f"thin_product<{kernel.planes}, {kernel.depth}>"
    )


def _sizes(kernel: FewKernel) -> dict[str, str]:
    return {"columns": str(kernel.columns), "depth": str(kernel.depth)}


def _launcher(
    kernel: FewKernel, struct: str, fields: dict[str, str], numbers: int, function: str
) -> str:
    """`fields` are those behind the operands; as many `numbers` come before device and stream."""
    given = {"left": True, "right": True, "bias": kernel.biased}
    operands = {
        name: f"static_cast<const float*>(tensors[{i}])" if there else "nullptr"
        for i, (name, there) in enumerate(given.items())
    }
    lines = [
        f"  const kw::{struct} g{{",
        *(f"      {field},  // {name}" for name, field in (operands | fields).items()),
        "  };",
        *on_device(numbers),
        f"  return kw::{function}(g, on);",
    ]
    return c_function(f"launch_{kernel.name}", lines)
