"""Which elements a dropout keeps, as eager's own would: by a kernel of ours, or by ATen.

The kernel draws what ATen's would draw from the same state of torch's generator, and leaves the
generator where that would leave it. ATen is asked where the state is not to be had, which is so
while a CUDA graph is captured, and where this torch turns out to draw otherwise.
"""

import functools
import math
import struct

import torch

DROPOUT_THREADS = 256  # of a block of ATen's
WIDEST = 16  # bytes of an element's type that ATen takes at once


@functools.lru_cache(maxsize=128)
def keep_mask(library, device, shape, dtype, rate):
    """What makes the mask of a dropout of this size."""
    return KeepMask(library, device, shape, dtype, rate)


class KeepMask:
    """Makes the mask of a dropout anew in every call."""

    def __init__(self, library, device, shape, dtype, rate):
        self.library, self.device = library, device
        self.shape, self.dtype, self.rate = shape, dtype, rate
        count = math.prod(shape)
        properties = torch.cuda.get_device_properties(device)
        most = properties.multi_processor_count * (
            properties.max_threads_per_multi_processor // DROPOUT_THREADS
        )
        blocks = max(1, min(most, -(-count // DROPOUT_THREADS)))
        # Each thread's, of four numbers at a time.
        self.draws = -(-count // (blocks * DROPOUT_THREADS * 4))
        keep = struct.unpack("I", struct.pack("f", 1.0 - rate))[0]
        vec = math.gcd(count, WIDEST // dtype.itemsize)
        self.numbers = (count, blocks, keep, vec)

    def __call__(self):
        if self.draws == 0:
            return self.empty()
        if torch.cuda.is_current_stream_capturing() or not draws_alike(
            self.library, self.device, self.dtype
        ):
            return self.by_aten()
        return self.by_kernel()

    def empty(self):
        return torch.empty(self.shape, dtype=torch.bool, device=self.device)

    def by_aten(self):
        alike = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return torch.native_dropout(alike, self.rate, True)[1]

    def by_kernel(self):
        generator = torch.cuda.default_generators[self.device.index]
        offset = generator.get_offset()
        generator.set_offset(offset + 4 * self.draws)
        mask = self.empty()
        seed = generator.initial_seed()
        signed = seed - (seed >> 63 << 64)  # as C takes it
        self.library.launch("dropout_mask", self.device, [mask], signed, offset // 4, *self.numbers)
        return mask


@functools.cache
def draws_alike(library, device, dtype):
    """Whether the kernel draws as this torch does, tried on sizes of each kind."""
    if not hasattr(torch.Generator, "get_offset") or not hasattr(torch.Generator, "set_offset"):
        return False
    generator = torch.cuda.default_generators[device.index]
    begin, found = generator.get_offset(), []
    most = KeepMask(library, device, (1 << 40,), dtype, 0.5).numbers[1] * DROPOUT_THREADS
    for count in (9 * most, 9 * most + 2, 5 * most + 1, 12):
        mask = KeepMask(library, device, (count,), dtype, 0.3)
        ends = []
        for made in (mask.by_aten, mask.by_kernel):
            generator.set_offset(begin)
            ends.append((made(), generator.get_offset()))
        (theirs, there), (ours, here) = ends
        found.append(there == here and torch.equal(theirs, ours))
    generator.set_offset(begin)
    return all(found)
