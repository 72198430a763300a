"""The steps of a call, recorded once for each kind of call, then run again with other tensors.

`fused` is written as if every line ran in every call. It is given Values in the place of tensors,
and its lines are noted: memory, launches, calls of the library. What depends on sizes alone is
thereby done once: which way is taken, shapes, addresses inside of one workspace, and the tables
from which C starts all kernels between two library calls.
"""

import math

import torch

from kernelwright.embedded.launches import Sequence

APART = 256  # bytes at whose multiples temporaries begin


class Value:
    """What stands for a tensor while steps are recorded; `rows` are a slice of it."""

    def __init__(self, index, shape=None, dtype=None, rows=None):
        self.index, self.shape, self.dtype, self.rows = index, shape, dtype, rows

    def __getitem__(self, rows):
        return Value(self.index, self.shape, self.dtype, rows)

    @property
    def bytes(self):
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def offset(self):
        """The bytes before its first row."""
        start = self.rows.start or 0 if self.rows else 0
        return start * math.prod(self.shape[1:]) * self.dtype.itemsize if start else 0


class Empty:
    """Memory without values, which some step writes."""

    def __init__(self, value):
        self.value, self.uses = value, (value.index,)

    def step(self, device):
        shape, strides = tuple(self.value.shape), dense(self.value.shape)
        options = {"dtype": self.value.dtype, "device": device}
        alike = torch.empty(0, **options)

        def by_torch():
            return torch.empty_strided(shape, strides, **options)

        return "empty", (self.value.index, shape, strides, alike, by_torch)


def dense(shape):
    """The strides of memory without gaps."""
    return tuple(math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape)))


class Call:
    """A function of tensors, left to torch."""

    def __init__(self, function, given, index):
        self.function, self.given, self.index = function, given, index
        self.uses = (*(v.index for v in given), index)

    def step(self, device):
        places, rows = tuple(v.index for v in self.given), tuple(v.rows for v in self.given)
        return "call", (self.function, places, rows, self.index)


def stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


class Steps:
    """One kind of call. While `fused` is recorded, it is given this to say what is to be done."""

    def __init__(self, fusion, memo, tensors):
        self.library, self.precision = fusion.kernels, fusion.precision
        self.device = tensors[0].device
        self.frozen = set(memo.frozen)
        self.written = tuple(fusion.in_place)
        self.given = self.count = len(tensors)
        self.tape, self.launches = [], {}
        self.halves, self.contracts = {}, False
        values = [Value(i, t.shape, t.dtype) for i, t in enumerate(tensors)]
        self.finish(fusion.fused(self, *values))

    # ---- what fused() says -------------------------------------------------------------------

    def value(self, shape=None, dtype=None):
        self.count += 1
        return Value(self.count - 1, shape, dtype)

    def empty(self, shape, dtype):
        """Memory without values."""
        value = self.value(shape, dtype)
        self.tape.append(Empty(value))
        return value

    def launch(self, name, operands, *numbers):
        """A kernel, on what it reads and what it writes, with its sizes."""
        self.launches[len(self.tape)] = (f"launch_{name}", operands, numbers)
        self.tape.append(None)

    def call(self, function, *given):
        """A function of torch, or of anybody."""
        value = self.value()
        self.tape.append(Call(function, given, value.index))
        return value

    def contract(self, function, *given):
        """A product or convolution of the library, at the precision of this file."""
        self.contracts = True
        return self.call(function, *given)

    def kept(self, target, weight, halves, scales):
        """The halves of a frozen weight, or memory for them, and whether they are frozen."""
        if target not in self.frozen:
            return self.empty(*halves), self.empty(*scales), False
        found = self.value(*halves), self.value(*scales)
        self.halves[target] = (weight.index, *(value.index for value in found))
        return *found, True

    # ---- what is made of it ------------------------------------------------------------------

    def finish(self, results):
        """Temporaries of kernels alone share a workspace; launches in a row become one step."""
        indices = tuple(v.index for v in results)
        handed = {*indices, *(i for s in self.tape if isinstance(s, Call) for i in s.uses)}
        places, room = self.placed(handed)
        workspace = self.value((room,), torch.uint8)
        steps, row = [(Empty(workspace).step(self.device), (workspace.index,))] if room else [], []
        for i, step in enumerate(self.tape):
            if i in self.launches:
                row.append(self.launches[i])
            elif not isinstance(step, Empty) or step.value.index in handed:
                if row and not isinstance(step, Empty):
                    steps.append(self.in_a_row(row, places, workspace))
                    row = []
                steps.append((step.step(self.device), step.uses))
        if row:
            steps.append(self.in_a_row(row, places, workspace))
        self.steps = self.until_done(steps, indices)
        kept = tuple(i for _, *pair in self.halves.values() for i in pair)
        made = self.library.sequence if self.library else Sequence
        self.sequence = made(self.count, kept, self.steps, indices, self.written)
        self.bytes, self.tape, self.launches = room, None, None

    def placed(self, handed):
        """Where in the workspace temporaries lie, and how large it is; what is over makes room."""
        last = {v.index: i for i, (_, vs, _) in self.launches.items() for v in vs}
        placed, found = [], {}
        for i, step in enumerate(self.tape):
            index = step.value.index if isinstance(step, Empty) else None
            if index in last and index not in handed:
                size = -(-max(1, step.value.bytes) // APART) * APART
                at = 0
                for start, stop, end in sorted(placed):
                    if end >= i and at + size <= start:
                        break
                    at = max(at, stop) if end >= i else at
                placed.append((at, at + size, last[index]))
                found[index] = at
        return found, max([stop for _, stop, _ in placed], default=0)

    def in_a_row(self, row, places, workspace):
        bases, launches = {}, []
        for name, values, numbers in row:
            operands = []
            for v in values:
                inside = v.index in places
                base, offset = (workspace.index, places[v.index]) if inside else (v.index, 0)
                operands.append((bases.setdefault(base, len(bases)), offset + v.offset))
            launches.append((name, operands, numbers))
        return self.library.launches(self.device, launches, bases), tuple(bases)

    def until_done(self, steps, results):
        """Each step with the values that nobody needs behind it."""
        needed, found = {*range(self.given), *results}, []
        for step, uses in reversed(steps):
            found.append((*step, tuple(i for i in dict.fromkeys(uses) if i not in needed)))
            needed.update(uses)
        return tuple(reversed(found))

    # ---- a call of this kind -----------------------------------------------------------------

    def run(self, memo, tensors):
        """The results, from inputs and state."""
        frozen = self.frozen_halves(memo, tensors)
        return self.precisely(self.sequence, tuple(tensors), frozen)

    def precisely(self, function, *arguments):
        """A function's result at the precision of this file, which torch mostly has."""
        if not self.contracts or self.precision.holds():
            return function(*arguments)
        with self.precision():
            return function(*arguments)

    def frozen_halves(self, memo, tensors):
        """What freeze() has kept of the weights, which must be as they were."""
        found = ()
        for target, (weight, *_) in self.halves.items():
            *halves, stamp = memo.frozen[target]
            if stamp != stamped(tensors[weight]):
                again = "call freeze() again or unfreeze()"
                raise RuntimeError(f"The weight {target} changed after freeze(); {again}.")
            found += tuple(halves)
        return found
