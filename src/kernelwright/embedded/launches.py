"""Kernels in a row: one crossing into C starts all of them, from a table that was made before."""

import ctypes
import struct

import torch

ALIGNMENT = 16
UNALIGNED = -1


class Library:
    """The compiled kernels of a file. `prepare` and `start` are all that Python asks of it."""

    def __init__(self, compiled, on_gpu):
        self.compiled, self.on_gpu = compiled, on_gpu
        self.run = compiled.run_launches
        self.run.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
        self.run.restype = ctypes.c_int64

    def table(self, launches, bases):
        """The launches as numbers: for each its function, its operands, its sizes.

        An operand is the position of a base address and the bytes from there on.
        """
        most = [max(len(launch[i]) for launch in launches) for i in (1, 2)]
        found = [len(launches), bases, ALIGNMENT if self.on_gpu else 1, *most]
        for name, operands, numbers in launches:
            address = ctypes.cast(self.compiled[name], ctypes.c_void_p).value
            found += [address, len(operands), len(numbers)]
            found += [number for operand in operands for number in operand]
            found += numbers
        return struct.pack(f"{len(found)}q", *found)

    def start(self, launches, addresses):
        """Run kernels on torch's current stream, or with as many threads as torch itself uses.

        Nothing here waits for a GPU.
        """
        if self.on_gpu:
            device = launches.device.index
            stream = torch._C._cuda_getCurrentRawStream(device)
            return self.run(launches.table, addresses, device, stream)
        return self.run(launches.table, addresses, torch.get_num_threads(), 0)

    def launch(self, name, device, tensors, *sizes):
        """A single kernel at once."""
        operands = [(i, 0) for i in range(len(tensors))]
        launches = Launches(self, device, [(name, operands, sizes)], range(len(tensors)))
        launches(tensors, None)

    def error(self, name, code):
        self.compiled.cuda_error_text.restype = ctypes.c_char_p
        text = self.compiled.cuda_error_text(code).decode()
        return RuntimeError(f"The launch of {name} failed: {text}.")


class Launches:
    """Kernels one after another; `bases` are the places of the tensors that they work on."""

    def __init__(self, library, device, launches, bases):
        self.library, self.device, self.bases = library, device, bases
        self.names = [name for name, _, _ in launches]
        self.table = library.table(launches, len(bases))
        self.packed = struct.Struct(f"{len(bases)}P")

    def __call__(self, values, memo):
        """Kernels read dense, aligned memory; anything else is copied first."""
        tensors = [t if (t := values[i]).is_contiguous() else t.contiguous() for i in self.bases]
        addresses = self.packed.pack(*[t.data_ptr() for t in tensors])
        code = self.library.start(self, addresses)
        if code == UNALIGNED:
            tensors = [t.clone() if t.data_ptr() % ALIGNMENT else t for t in tensors]
            addresses = self.packed.pack(*[t.data_ptr() for t in tensors])
            code = self.library.start(self, addresses)
        if code:
            raise self.library.error(self.names[code >> 32], code & 0xFFFFFFFF)
