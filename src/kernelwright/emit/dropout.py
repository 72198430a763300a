"""The launcher of the kernel that draws the masks of live dropout; all masks of a file share it."""

from __future__ import annotations

from kernelwright.dropout import KERNEL
from kernelwright.emit.launchers import c_function, on_device

MASK_HEADER = "dropout.cuh"
# What runtime/dropout.py gives, behind the mask: numbers are 64 bits wide, so the probability
# comes as the bits of a float.
FIELDS = {
    "out": "static_cast<bool*>(tensors[0])",
    "keys": "kw::RandomKeys(static_cast<uint64_t>(numbers[0]))",
    "drawn": "static_cast<uint64_t>(numbers[1])",
    "count": "numbers[2]",
    "blocks": "static_cast<unsigned>(numbers[3])",
    "kept": "kw::words_below(kw::detail::from_bits(static_cast<uint32_t>(numbers[4])))",
}

MASK_LAUNCHER = c_function(
    f"launch_{KERNEL}",
    [
        "  const kw::DropoutMask m{",
        *(f"      {field},  // {name}" for name, field in FIELDS.items()),
        "  };",
        *on_device(len(FIELDS)),
        "  return kw::dropout_mask(m, numbers[5], on);",
    ],
)
