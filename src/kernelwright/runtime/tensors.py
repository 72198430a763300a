"""What kernels can be given: tensors that are their memory, while nobody looks on."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

ALIGNMENT = 16  # bytes that a kernel loads at once


def is_ordinary(value):
    """Whether this is a tensor whose elements are what its memory holds, or a fake one of such."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, FakeTensor):
        return False
    if value.layout is not torch.strided or value.is_nested:
        return False
    return torch.compiler.is_compiling() or not is_lazy(value)  # an operator is given resolved ones


class State(tuple):
    """The parameters and buffers of a module, and what is known of them."""

    known = (None, None)  # on which device they fit, and torch's guard of what they were then


def unlike(state, device):
    """The tensors of a state, unless types, sizes and layouts are those that fitted before."""
    if torch.compiler.is_compiling():
        return state
    place, guard = getattr(state, "known", State.known)
    return () if place == device and guard.check(*state) else state


def fits(state, device):
    """From here on, this state is known to fit inputs on this device."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None or type(state) is not State or torch.compiler.is_compiling():
        return
    guard = guards(*state, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    if guard.check(*state):
        state.known = device, guard


def is_lazy(tensor):
    """Whether torch has put off to conjugate or to negate what memory holds, or to fill it."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def ready(tensor):
    """Memory as kernels need it, dense and aligned: the tensor itself, or a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def is_channels_last(tensor):
    """Whether a tensor has that order and no other: what eager makes of it has it, too."""
    orders = {4: torch.channels_last, 5: torch.channels_last_3d}
    order = orders.get(tensor.ndim)
    return (
        order is not None
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=order)
    )


def in_order(tensor):
    """Whether memory follows the axes from the last to the first, gaps and repeats aside."""
    if tensor.is_contiguous():
        return True
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    steps = [stride for size, stride in pairs if size > 1 and stride > 0]
    return steps == sorted(steps, reverse=True)


def asking(*tensors):
    """Which of them a gradient is recorded for."""
    return tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors)


def laid(tensor, order):
    """A copy whose axes lie in memory in this order."""
    return torch.empty_permuted(
        tensor.shape, order, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


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


def is_traced(inputs):
    """Whether a dispatch mode, the JIT's tracer or fake tensors stand between us and the memory."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or isinstance(inputs[0], FakeTensor)
    )
