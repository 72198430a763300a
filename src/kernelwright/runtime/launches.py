"""How a kernel is started: addresses and sizes, as C takes them."""

import struct

import torch

from kernelwright.runtime.build import compiler_name

NO_COMPILER = "there is no C++ compiler to be run as {}; install g++, or set CXX to one"


class Library:
    """The compiled kernels of a file; each of `watchers` is told their names before they start.

    Without a compiler there are none, and `refused` says so.
    """

    def __init__(self, compiled):
        self.compiled, self.watchers = compiled, []
        self.refused = None if compiled else NO_COMPILER.format(compiler_name())

    def launch(self, name, tensors, *sizes):
        """Start a kernel on dense memory, with as many threads as torch uses."""
        for watcher in self.watchers:
            watcher((f"launch_{name}",))
        dense = [tensor.contiguous() for tensor in tensors]
        places = struct.pack(f"{len(dense)}q", *[tensor.data_ptr() for tensor in dense])
        numbers = struct.pack(f"{len(sizes) + 1}q", *sizes, torch.get_num_threads())
        getattr(self.compiled, f"launch_{name}")(places, numbers)


def empty(shape, dtype):
    """Memory without values."""
    return torch.empty(shape, dtype=dtype, device="cpu")
