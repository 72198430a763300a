"""A module on another device than the current one.

In: a module, inputs and the name of a device. Out: results there, and of a call back home. Kernels
that are launched on the current device, or memory that is kept from the first, show here.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import Inputs, Named, copied, forward, map_tensors, on_device


def elsewhere(module: nn.Module, inputs: Inputs, here: Here, device: str) -> Named:
    """A copy of the module over there, called while this device is the current one."""
    there = torch.device(device)
    forward(module, copied(inputs))
    moved, given = copy.deepcopy(module).to(there), on_device(inputs, there)
    found = Named({"the result there": forward(moved, map_tensors(torch.Tensor.clone, given))})
    Here(there).finish()
    if there.type == "cuda":
        with torch.cuda.device(there):
            found["the result with that device current"] = forward(moved, given)
        Here(there).finish()
    found["the result here again"] = forward(module, inputs)
    return found
