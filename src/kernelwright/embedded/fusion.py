"""Which way a call takes: the kernels at once, inside an autograd function, or as an operator."""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack

from kernelwright.embedded.memo import Memo
from kernelwright.embedded.recorded import Recorded, StandIns
from kernelwright.embedded.traced import Glance, Operator


class Fusion:
    """All that the emitted functions of one model are to the code around them.

    `fused(memo, *inputs, *state)` computes the results; `original(module, *inputs, *constants)`
    computes the same with the user's own forward; `state(module)` reads parameters and buffers,
    `written(module)` the buffers that a call changes. `reaches` gives for each result the tensors
    that its gradient flows to, `blank` empty results for tracers; `globals` says that some of the
    state lies in the file, where no memo watches it.
    """

    def __init__(self, stem, **parts):
        self.__dict__.update(parts)
        self.operator = Operator(self, stem)
        self.parted = {}

    def register(self, module):
        """Every ModelNew comes by here when it is made."""
        self.operator.modules.add(module)
        vars(module)["_kernelwright"] = None
        return module

    def apart(self, needed):
        """The results that no gradient flows from, where these tensors need one."""
        if needed not in self.parted:
            flows = [any(needed[i] for i in of) for of in self.reaches]
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

    def run(self, memo, inputs, constants=()):
        """The results of a call that the kernels cover."""
        tensors = (*inputs, *memo.state)
        if torch.compiler.is_compiling() or is_traced(inputs):
            return self.operator.call(list(tensors))
        if torch.is_grad_enabled() and True in [t.requires_grad for t in tensors]:
            return Recorded.record(memo, constants, *tensors)
        return self.fused(memo, *tensors)


def is_recomputing():
    """Whether the backward of a module around this one runs its original forward."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    modes = _get_current_function_mode_stack()
    return any(type(mode).__name__ == StandIns.__name__ for mode in modes)


def is_ordinary(value):
    """Whether this is a tensor with memory of its own, or a fake one that stands for such."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) or isinstance(value, FakeTensor)


def is_traced(inputs):
    """Whether a dispatch mode, the JIT's tracer or fake tensors stand between us and the memory."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or isinstance(inputs[0], FakeTensor)
    )


def transformed(untraceable):
    """Why tensors are not what they seem, or None: inside vmap or jvp they wrap others.

    An operator is given tensors alone, so a traced call that draws random numbers, or that has
    arguments of other kinds, is left to the original forward.
    """
    if torch.compiler.is_compiling():
        return untraceable
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return untraceable if torch._C._len_torch_dispatch_stack() > 0 else None


def in_order(tensor):
    """Whether memory follows the axes from the last to the first, gaps and repeats aside."""
    if tensor.is_contiguous():
        return True
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    steps = [stride for size, stride in pairs if size > 1 and stride > 0]
    return steps == sorted(steps, reverse=True)
