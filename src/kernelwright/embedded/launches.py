"""Kernels in a row: one crossing into C starts all of them, from a table that was made before."""

import ctypes
import struct


class Library:
    """The compiled kernels of a file, and `calls`: what starts them (calls.cpp).

    Each of `watchers` is told the names of kernels before they start.
    """

    def __init__(self, compiled, calls, on_gpu):
        self.compiled, self.calls, self.on_gpu = compiled, calls, on_gpu
        self.watchers = []

    def launches(self, device, launches, bases):
        """Kernels one after another as a step; `bases` are the values that they work on.

        A launch is a name, its operands and its sizes; an operand is the position of a base, and
        the bytes from there on. Nothing waits for a GPU: kernels run on torch's current stream, or
        with as many threads as torch itself uses.
        """
        found = [len(launches), *(max(len(launch[i]) for launch in launches) for i in (1, 2))]
        for name, operands, numbers in launches:
            address = ctypes.cast(self.compiled[name], ctypes.c_void_p).value
            found += [address, len(operands), len(numbers)]
            found += [number for operand in operands for number in operand]
            found += numbers
        table = struct.pack(f"{len(found)}q", *found)
        place = device.index if self.on_gpu else None
        names = tuple(name for name, _, _ in launches)
        return "launches", (table, tuple(bases), place, names, self.watchers, self.failed)

    def launch(self, name, device, tensors, *sizes):
        """A single kernel at once."""
        places = range(len(tensors))
        step = self.launches(device, [(name, [(i, 0) for i in places], sizes)], places)
        self.calls.Sequence(len(tensors), (), ((*step, ()),), ())(tuple(tensors), ())

    def failed(self, names, code):
        """Raise the error that a launch came back with."""
        self.compiled.cuda_error_text.restype = ctypes.c_char_p
        text = self.compiled.cuda_error_text(code & 0xFFFFFFFF).decode()
        raise RuntimeError(f"The launch of {names[code >> 32]} failed: {text}.")
