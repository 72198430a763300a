"""How kernels are started on a GPU: alone, or all between two calls that only torch can make."""

import ctypes
import functools
import struct

import torch

from kernelwright.runtime.tensors import ALIGNMENT, ready

MOST_CALLS = 1024  # whose numbers are kept, and runs whose memory is known


class Library:
    """The compiled kernels of a file, None without a GPU.

    Each of `watchers` is told their names before they start.
    """

    def __init__(self, compiled):
        self.compiled, self.watchers = compiled, []
        self.prepared, self.rooms = {}, {}
        self.listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.told)
        self.listening = False

    def launch(self, name, device, tensors, *sizes):
        """Start a kernel."""
        for watcher in self.watchers:
            watcher((f"launch_{name}",))
        self.start(f"launch_{name}", device, tensors, sizes)

    def run(self, name, device, tensors, *sizes):
        """Start the kernels of a run, on what it is given and on memory that is theirs alone."""
        if bool(self.watchers) is not self.listening:
            self.listen()
        room = self.rooms.get((name, sizes))
        if room is None:
            if len(self.rooms) >= MOST_CALLS:
                self.rooms.clear()
            room = self.rooms[name, sizes] = self.room(name, sizes)
        memory = empty((room,), torch.uint8, device)
        self.start(f"run_{name}", device, [*tensors, memory], sizes, None)

    def room(self, name, sizes):
        """The bytes that its kernels need, which the run itself counts."""
        found = ctypes.c_int64()
        numbers = struct.pack(f"{len(sizes) + 2}q", *sizes, 0, 0)
        getattr(self.compiled, f"run_{name}")(None, numbers, ctypes.byref(found))
        return found.value

    def start(self, function, device, tensors, sizes, *others):
        """A function of the library on torch's current stream; kernels need dense, aligned memory.

        Nothing waits for the GPU.
        """
        places = addresses(tensors)
        if any([place % ALIGNMENT for place in places]):
            tensors = [None if tensor is None else ready(tensor) for tensor in tensors]
            places = addresses(tensors)
        index = device.index
        call = function, sizes, index, torch._C._cuda_getCurrentRawStream(index)
        found = self.prepared.get(call)
        if found is None:
            found = self.prepare(call, len(places))
        begin, pack, numbers = found
        code = begin(pack(*places), numbers, *others)
        if code:
            self.fail(function, code)

    def prepare(self, call, count):
        """What calls with the same numbers share: the function, and its numbers as C takes them."""
        function, sizes, *last = call
        if len(self.prepared) >= MOST_CALLS:
            self.prepared.clear()
        numbers = struct.pack(f"{len(sizes) + 2}q", *sizes, *last)
        begin = getattr(self.compiled, function)
        self.prepared[call] = found = begin, struct.Struct(f"{count}q").pack, numbers
        return found

    def fail(self, function, code):
        """Raise the error that a launch came back with."""
        for name in ("last_launch", "cuda_error_text"):
            getattr(self.compiled, name).restype = ctypes.c_char_p
        kernel = self.compiled.last_launch().decode() if function.startswith("run_") else function
        text = self.compiled.cuda_error_text(code).decode()
        raise RuntimeError(f"The launch of {kernel} failed: {text}.")

    def listen(self):
        """Watchers are told by the run itself which kernels it starts."""
        self.listening = bool(self.watchers)
        self.compiled.watch_launches(self.listener if self.listening else None)

    def told(self, name):
        for watcher in self.watchers:
            watcher((name.decode(),))


def addresses(tensors):
    """Where their elements lie: 1 for one that has gaps, and 0 where there is none."""
    return [0 if t is None else t.data_ptr() if t.is_contiguous() else 1 for t in tensors]


# torch's own for code that it has compiled: on the current device, without a parser of arguments.
EMPTY = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
HERE = getattr(torch._C, "_cuda_getDevice", None)


def empty(shape, dtype, device):
    """Memory without values."""
    if EMPTY is None or HERE is None or device.type != "cuda" or device.index != HERE():
        return torch.empty(shape, dtype=dtype, device=device)
    return EMPTY(shape, strides(shape), dtype)


@functools.lru_cache(maxsize=1024)
def strides(shape):
    """Those of dense memory."""
    found = [1]
    for size in shape[:0:-1]:
        found.append(found[-1] * max(size, 1))
    return tuple(found[::-1]) if shape else ()


@functools.cache
def capability(device):
    """Which instructions a GPU has; None: this is no GPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


PLACED = {}


def placed(constant, device):
    """A constant on this device, where it stays from the first call on."""
    key = (id(constant), device)
    if key not in PLACED:
        PLACED[key] = constant.to(device)
    return PLACED[key]
