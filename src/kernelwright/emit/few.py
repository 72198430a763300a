"""Products of a few rows: the launcher of the kernel that stands beside the library's call."""

from __future__ import annotations

from kernelwright.emit.launchers import c_function, on_device
from kernelwright.lower import FewKernel

FEW_HEADER = "few_rows.cuh"
# From here on all warps have columns of their own; with fewer, those of a block share the depth.
# (H200, eight rows: 26 us shared and 30 us apart at 4096 x 4096, 81 and 76 at 8192 x 8192.)
MANY_COLUMNS = 8192


def few_launcher(kernel: FewKernel) -> str:
    given = [True, True, kernel.biased]
    names = ["left", "right", "bias"]
    fields = [
        f"static_cast<const float*>(tensors[{i}])" if there else "nullptr"
        for i, there in enumerate(given)
    ]
    fields += [f"static_cast<float*>(tensors[{sum(given)}])", "numbers[0]", str(kernel.columns)]
    named = zip(
        [*names, "out", "rows", "columns", "depth"], [*fields, str(kernel.depth)], strict=True
    )
    share = "true" if kernel.columns < MANY_COLUMNS else "false"
    lines = [
        "  const kw::FewRows g{",
        *(f"      {field},  // {name}" for name, field in named),
        "  };",
        *on_device(1),
        f"  return kw::few_rows<{share}>(g, on);",
    ]
    return c_function(f"launch_{kernel.name}", lines)
