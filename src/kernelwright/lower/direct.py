"""The kernels of small convolutions on the CPU (kernels/direct.hpp), as values."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.plan import ConvForm, Plan, Region


@dataclass(frozen=True)
class DirectKernel:
    """A convolution of these sizes for any number of samples, with or without a bias."""

    region: Region
    form: ConvForm
    biased: bool

    @property
    def name(self) -> str:
        return f"{self.region.name}_direct"

    @property
    def key(self) -> tuple[object, ...]:
        """What two kernels must have in common to be one."""
        return "direct", self.form.unnamed, self.biased


def direct_kernels(plan: Plan) -> tuple[DirectKernel, ...]:
    """Those of each of the library's convolutions that has such a kernel beside it."""
    found = ((region, region.direct) for region in plan.library)
    return tuple(DirectKernel(r, d.form, r.bias is not None) for r, d in found if d is not None)
