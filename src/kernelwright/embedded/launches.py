"""Kernels in a row, as a table of numbers; and steps run by Python, where C++ does not run them."""

import ctypes
import struct

import torch

ALIGNMENT = 16
LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Library:
    """The compiled kernels of a file, and `calls`: what starts them (calls.cpp), or None.

    `node` is the future that brings node.cpp, or None; only who measures waits for it. Each of
    `watchers` is told the names of kernels before they start.
    """

    def __init__(self, compiled, calls, node, on_gpu):
        self.compiled, self.calls, self.node, self.on_gpu = compiled, calls, node, on_gpu
        self.watchers = []
        self.sequence = calls.Sequence if calls else Sequence

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
        self.sequence(len(tensors), (), ((*step, ()),), (), ())(tuple(tensors), ())

    def failed(self, names, code):
        """Raise the error that a launch came back with."""
        self.compiled.cuda_error_text.restype = ctypes.c_char_p
        text = self.compiled.cuda_error_text(code & 0xFFFFFFFF).decode()
        raise RuntimeError(f"The launch of {names[code >> 32]} failed: {text}.")


class Sequence:
    """Steps one after another; as in calls.cpp, which needs kernels and the headers of Python."""

    def __init__(self, count, kept, steps, results, written):
        self.count, self.kept, self.steps, self.results = count, kept, steps, results
        self.written = written

    def __call__(self, tensors, frozen):
        values = [*tensors, *[None] * (self.count - len(tensors))]
        for i, tensor in zip(self.kept, frozen, strict=True):
            values[i] = tensor
        lent = []
        for i in self.written:
            ready = as_kernels_need(values[i])
            if ready is values[i]:
                torch.autograd.graph.increment_version(ready)
            else:
                lent.append((values[i], ready))
                values[i] = ready
        for name, row, done in self.steps:
            if name == "empty":
                values[row[0]] = row[-1]()
            elif name == "call":
                function, given, rows, index = row
                pairs = [(values[i], part) for i, part in zip(given, rows, strict=True)]
                values[index] = function(*[v if part is None else v[part] for v, part in pairs])
            else:
                start(values, *row)
            for i in done:
                values[i] = None
        with torch.no_grad():
            for buffer, new in lent:
                buffer.copy_(new)
        return tuple([values[i] for i in self.results])


def as_kernels_need(tensor):
    """Dense memory, aligned on a GPU: the tensor itself, or a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % ALIGNMENT else tensor


def start(values, table, bases, device, names, watchers, failed):
    """Kernels in a row, on memory as they need it."""
    for watcher in watchers:
        watcher(names)
    tensors = [as_kernels_need(values[i]) for i in bases]
    last = (torch.get_num_threads(), 0)
    if device is not None:
        last = (device, torch._C._cuda_getCurrentRawStream(device))
    numbers, at = struct.unpack(f"{len(table) // 8}q", table), 3
    for place in range(len(names)):
        address, operands, sizes = numbers[at : at + 3]
        behind = at + 3 + 2 * operands
        pairs = zip(numbers[at + 3 : behind : 2], numbers[at + 4 : behind : 2], strict=True)
        addresses = [tensors[base].data_ptr() + offset for base, offset in pairs]
        at = behind + sizes
        given = (ctypes.c_void_p * operands)(*addresses)
        code = LAUNCHER(address)(given, (ctypes.c_int64 * (sizes + 2))(*numbers[behind:at], *last))
        if code:
            failed(names, place << 32 | code)


def start_now(library, name, device, tensor, numbers):
    """A kernel on one tensor, with numbers that are others in every call."""
    for watcher in library.watchers:
        watcher((name,))
    last = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
    given = (ctypes.c_int64 * (len(numbers) + 2))(*numbers, *last)
    code = library.compiled[name]((ctypes.c_void_p * 1)(tensor.data_ptr()), given)
    if code:
        library.failed((name,), code)
