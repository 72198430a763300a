"""Which way a call takes: the kernels at once, inside an autograd function, or as an operator."""

import functools
import operator

import torch

from kernelwright.embedded.memo import Memo, unknown
from kernelwright.embedded.recorded import Recorded, recording
from kernelwright.embedded.steps import Steps
from kernelwright.runtime.autograd import gradients, is_recomputing
from kernelwright.runtime.tensors import is_lazy, is_traced
from kernelwright.runtime.traced import Glance, Operator

LITERALS = (int, bool, str, type(None))
MOST_KINDS = 128  # of calls that are remembered
TYPE = operator.attrgetter("dtype", "shape", "device")


class Kind:
    """What is known of a kind of call: why the kernels cannot take it, or its recorded steps."""

    def __init__(self, cause, types=None):
        self.cause, self.types, self.steps = cause, types, None


class Unfrozen:
    """The record of no module in particular."""

    frozen = {}  # noqa: RUF012


class Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(run, *inputs, *state)` says how the results are computed; `original(module, *inputs,
    *constants)` computes the same with the user's own forward; `model` is the user's class, where
    that may matter to it; `outside(state, *arguments)` says why the kernels cannot take a call;
    `state(module)` reads parameters and buffers. Of inputs and state, `rewritten` are the places of
    the buffers that a call changes, `recalled` of those that results depend on, `in_place` of those
    that kernels write. `reaches` gives for each result the tensors that its gradient flows to,
    `blank` empty results for tracers; `flat` gives the values of a call one by one, and `given`
    says which of them the inputs are, where they are; `globals` says that some of the state lies in
    the file, where no memo watches it; `switch` reads what may be set in the file; `alone` gives
    the results that may be views of something inside and share no element with another. Where it
    depends on which tensors ask for gradients how results lie, `asking` and `laid` see to that, or
    `ways` says that every call asks outside().
    """

    alone = ()
    ways = False
    in_place = ()

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = Operator(self, stem)
        self.parted, self.kinds, self.recorded = {}, {}, {}
        self.record = recording(Recorded)
        self.again = unknown  # gives the results of a call like one before it, None for any other
        if self.kernels and self.kernels.calls and not self.ways:
            self.again = self.kernels.calls.again

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    @staticmethod
    def flat(*arguments):
        """Arguments with the values in `*args` and `**kwargs` one by one, for files with these."""
        return arguments

    def plain(self, module):
        """A ModelNew as one of the original's class, over the very same attributes."""
        if torch.compiler.is_compiling() or type(module).__base__ is not self.model:
            return module
        found = object.__new__(self.model)
        found.__dict__ = vars(module)
        return found

    def apart(self, needed):
        """The results that no gradient flows from, where these tensors need one."""
        if needed not in self.parted:
            flows = [any(needed[1 + i] for i in of) for of in self.reaches]
            self.parted[needed] = [i for i, flow in enumerate(flows) if not flow]
        return self.parted[needed]

    def memo(self, module):
        """The module's record, made anew where anything was touched since it was made."""
        if torch.compiler.is_compiling():
            return Glance(module, self, hasattr(module, "_kernelwright_original"))
        if "_kernelwright_original" in vars(module) or is_recomputing():
            return Glance(module, self, original=True)
        memo = vars(module).get("_kernelwright")
        if memo is None or not memo.is_current(module):
            mine = memo is not None and memo.module is module
            memo = Memo(module, self, memo if mine else None)
        elif self.globals and memo.cause is None:
            memo.state = self.state(module)
        return memo

    def look(self, module, *arguments):
        """The module's record, and what is known of calls like this one."""
        memo = self.memo(module)
        if memo.cause is not None:
            return memo, Kind(memo.cause)
        values = self.flat(*arguments)
        key = None if self.ways or is_watched(self.device) else self.key(memo, values)
        if key is None:
            return memo, Kind(self.outside(memo.state, *arguments))
        types = [*map(TYPE, memo.state), *map(is_lazy, memo.state)]
        if self.random:
            types += [tensor.stride() for tensor in memo.state]
        kind = self.kinds.get(key)
        if kind is None or kind.types != types:
            kind = Kind(self.outside(memo.state, *arguments), types)
            if kind.cause is None:
                remember(self.kinds, key, kind)
        if kind.cause is None:
            self.learn(memo, kind, values)
        return memo, kind

    def learn(self, memo, kind, arguments):
        """From here on, again() knows calls like this one."""
        state = memo.state
        if memo.known is unknown or not all(map(is_dense, state)):
            return
        inputs = [arguments[i] for i in self.given]
        if kind.steps is None:
            kind.steps = self.steps(memo, (*inputs, *state))
        steps = kind.steps
        frozen = steps.frozen_halves(memo, (*inputs, *state))
        weights = tuple(weight - self.inputs for weight, *_ in steps.halves.values())
        precise = self.precision.holds if steps.contracts else None
        kept = (tuple(state), self.switch(), frozen, weights, precise)
        recorded = (self.record, (memo, steps.sequence, (), frozen))
        node = (None, (), ())
        # Others need Python around the kernels: generators, copies of buffers, aliases.
        if not (self.random or self.recalled or self.alone):
            backward = functools.partial(gradients, self, memo.module, (), None)
            node = (backward, tuple(self.reaches), tuple(self.rewritten))
        memo.known.add(arguments, self.given, *kept, steps.sequence, *recorded, *node)

    def key(self, memo, arguments):
        """All that outside() asks of the arguments; None where that cannot be told in short."""
        found = [*memo.frozen, self.switch()]
        for value in arguments:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                if value.layout is not torch.strided or is_lazy(value):
                    return None
                order = value.is_contiguous() or value.stride()
                found += (kind, value.dtype, value.device, value.shape, order)
            elif kind in LITERALS:
                found += (kind, value)
            elif kind is float:
                found += (kind, repr(value))  # 0.0 and -0.0 are equal
            else:
                return None
        return tuple(found)

    def run(self, memo, kind, inputs, constants=()):
        """The results of a call that the kernels cover."""
        tensors = (*inputs, *memo.state)
        if kind.steps is None:
            if torch.compiler.is_compiling() or is_traced(inputs):
                return self.traced(tensors)
            kind.steps = self.steps(memo, tensors)
        if torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]:
            frozen = kind.steps.frozen_halves(memo, tensors)
            call = (memo, kind.steps.sequence, constants, frozen)
            return kind.steps.precisely(self.record, call, *tensors)
        return kind.steps.run(memo, tensors)

    def compute(self, tensors):
        """The results, for no module in particular."""
        return self.steps(Unfrozen, tensors).run(Unfrozen, tensors)

    def traced(self, tensors):
        """The results of a call that is traced.

        The operator hands back what buffers become, to autograd with a history as all its results.
        """
        results = self.operator.call(list(tensors))
        count = len(self.reaches)
        for i, new in zip(self.rewritten, results[count:], strict=True):
            tensors[i].copy_(new.detach())
        return results[:count]

    def steps(self, memo, tensors):
        """The steps for tensors of these sizes, recorded where they are not yet."""
        inputs = tensors[: self.inputs]
        key = (*memo.frozen, self.switch(), inputs[0].device, *(t.shape for t in inputs))
        found = self.recorded.get(key)
        if found is None:
            found = Steps(self, memo, tensors)
            remember(self.recorded, key, found)
        return found


def remember(table, key, value):
    """Keep a value, and not too many of them."""
    if len(table) >= MOST_KINDS:
        table.clear()
    table[key] = value


def is_watched(device):
    """Whether anything stands between a call and the memory of its tensors."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch.is_autocast_enabled(device)
    )


def is_dense(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
