"""The steps of a call, recorded once for each kind of call, then run again with other tensors.

`fused` is written as if every line ran in every call. It is given Values in the place of tensors,
and its lines are noted: memory, launches, calls of the library. What depends on sizes alone is
thereby done once: which way is taken, shapes, addresses inside of one workspace, and the tables
from which C starts all kernels between two library calls.
"""

import math

import torch

from kernelwright.embedded.launches import Launches

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
    """Memory that has to be a tensor of its own, since it is handed on."""

    def __init__(self, value, device):
        self.index, self.value, self.uses = value.index, value, (value.index,)
        self.shape, self.strides = tuple(value.shape), dense(value.shape)
        self.options = {"dtype": value.dtype, "device": device}

    def __call__(self, values, memo):
        values[self.index] = torch.empty_strided(self.shape, self.strides, **self.options)


def dense(shape):
    """Strides, spelled out: torch takes a third less time for memory that is described so."""
    return tuple(math.prod(max(1, size) for size in shape[i + 1 :]) for i in range(len(shape)))


class Call:
    """A function of tensors, left to torch."""

    def __init__(self, function, given, index):
        self.function, self.index = function, index
        self.given = [(v.index, v.rows) for v in given]
        self.uses = (*(v.index for v in given), index)

    def __call__(self, values, memo):
        given = [values[i] if rows is None else values[i][rows] for i, rows in self.given]
        values[self.index] = self.function(*given)


class Kept:
    """The halves of a weight that is frozen."""

    def __init__(self, target, weight, halves, scales):
        self.target, self.weight = target, weight.index
        self.indices = self.uses = (halves.index, scales.index)

    def __call__(self, values, memo):
        *made, stamp = memo.frozen[self.target]
        if stamp != stamped(values[self.weight]):
            again = "call freeze() again or unfreeze()"
            raise RuntimeError(f"The weight {self.target} changed after freeze(); {again}.")
        for index, tensor in zip(self.indices, made, strict=True):
            values[index] = tensor


def stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


class Steps:
    """One kind of call. While `fused` is recorded, it is given this to say what is to be done."""

    def __init__(self, fusion, memo, tensors):
        self.library, self.precision = fusion.kernels, fusion.precision
        self.device = tensors[0].device
        self.frozen = set(memo.frozen)
        self.given = self.count = len(tensors)
        self.tape, self.launches = [], {}
        values = [Value(i, t.shape, t.dtype) for i, t in enumerate(tensors)]
        self.finish(fusion.fused(self, *values))

    # ---- what fused() says -------------------------------------------------------------------

    def value(self, shape=None, dtype=None):
        self.count += 1
        return Value(self.count - 1, shape, dtype)

    def empty(self, shape, dtype):
        """Memory without values."""
        value = self.value(shape, dtype)
        self.tape.append(Empty(value, self.device))
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

        def precise(*tensors):
            with self.precision():
                return function(*tensors)

        return self.call(precise, *given)

    def kept(self, target, weight, halves, scales):
        """The halves of a frozen weight, or memory for them, and whether they are frozen."""
        if target not in self.frozen:
            return self.empty(*halves), self.empty(*scales), False
        found = self.value(*halves), self.value(*scales)
        self.tape.append(Kept(target, weight, *found))
        return *found, True

    # ---- what is made of it ------------------------------------------------------------------

    def finish(self, results):
        """Temporaries of kernels alone share a workspace; launches in a row become one step."""
        self.results = [v.index for v in results]
        handed = {*self.results, *(i for s in self.tape if isinstance(s, Call) for i in s.uses)}
        places, self.bytes = self.placed(handed)
        steps, row = [], []
        for i, step in enumerate(self.tape):
            if i in self.launches:
                row.append(self.launches[i])
            elif not isinstance(step, Empty) or step.index in handed:
                if row and not isinstance(step, Empty):
                    steps.append(self.in_a_row(row, places))
                    row = []
                steps.append(step)
        if row:
            steps.append(self.in_a_row(row, places))
        self.steps = list(zip(steps, self.done(steps), strict=True))
        self.blank = [None] * (self.count + 1 - self.given)  # the workspace is behind all others
        self.tape = self.launches = None

    def placed(self, handed):
        """Where in the workspace temporaries lie, and how large it is; what is over makes room."""
        last = {v.index: i for i, (_, vs, _) in self.launches.items() for v in vs}
        placed, found = [], {}
        for i, step in enumerate(self.tape):
            if isinstance(step, Empty) and step.index not in handed and step.index in last:
                size = -(-max(1, step.value.bytes) // APART) * APART
                at = 0
                for start, stop, end in sorted(placed):
                    if end >= i and at + size <= start:
                        break
                    at = max(at, stop) if end >= i else at
                placed.append((at, at + size, last[step.index]))
                found[step.index] = at
        return found, max([stop for _, stop, _ in placed], default=0)

    def in_a_row(self, row, places):
        bases, launches = {}, []
        for name, values, numbers in row:
            operands = []
            for v in values:
                base, offset = (self.count, places[v.index]) if v.index in places else (v.index, 0)
                operands.append((bases.setdefault(base, len(bases)), offset + v.offset))
            launches.append((name, operands, numbers))
        step = Launches(self.library, self.device, launches, list(bases))
        step.uses = step.bases
        return step

    def done(self, steps):
        """For each step the values that nobody needs behind it."""
        needed, found = {*range(self.given), *self.results}, []
        for step in reversed(steps):
            found.append([i for i in dict.fromkeys(step.uses) if i not in needed])
            needed.update(step.uses)
        return reversed(found)

    def run(self, memo, tensors):
        values = [*tensors, *self.blank]
        if self.bytes:
            room = (self.bytes,), (1,)
            values[-1] = torch.empty_strided(*room, dtype=torch.uint8, device=self.device)
        for step, done in self.steps:
            step(values, memo)
            for i in done:
                values[i] = None
        return tuple([values[i] for i in self.results])
