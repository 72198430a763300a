"""Small convolutions on the CPU: the launchers of their kernels."""

from __future__ import annotations

from kernelwright.emit.launchers import c_function
from kernelwright.lower.few import DirectKernel
from kernelwright.plan.convolutions import Extents


def direct_launcher(kernel: DirectKernel) -> str:
    form, last = kernel.form, 2 + kernel.biased
    fields = {
        "x": "static_cast<const float*>(tensors[0])",
        "weight": "static_cast<const float*>(tensors[1])",
        "bias": "static_cast<const float*>(tensors[2])" if kernel.biased else "nullptr",
        "out": f"static_cast<float*>(tensors[{last}])",
        "samples": "numbers[0]",
        "groups": str(form.groups),
        "inside": str(form.cin // form.groups),
        "filters": str(form.cout // form.groups),
        "in": _places(form.in_size),
        "result": _places(form.out_size),
        "window": _places(form.kernel),
        "stride": _places(form.stride),
        "dilation": _places(form.dilation),
        "padding": _places(form.padding),
    }
    lines = [
        "  const kw::DirectConv g{",
        *(f"      {value},  // {name}" for name, value in fields.items()),
        "  };",
        "  kw::convolve(g, static_cast<int>(numbers[1]));",
        "  return 0;",
    ]
    return c_function(f"launch_{kernel.name}", lines)


def _places(extents: Extents) -> str:
    return f"{{{extents[1]}, {extents[2]}}}"
