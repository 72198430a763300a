"""Gradients of a call of the kernels: the original forward runs once more.

The kernels keep no activations. If gradients are asked for, the original forward runs on the
tensors of the call, and autograd differentiates that: values, double backward and what is unused
are eager's own. Generated backward kernels will take the place of `gradients`.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _pytree as pytree


class StandIns(TorchFunctionMode):
    """Inside, every operation that is given one of these tensors gets another in its place.

    So the parameters of a module need not be replaced in the module itself, which other threads
    may be using, and hooks on the parameters do not run for gradients that are not theirs yet.
    """

    _kernelwright_stands_in = True  # other emitted files ask for this, whatever the class is called

    def __init__(self, pairs):
        super().__init__()
        self.pairs = {id(old): (old, new) for old, new in pairs}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map(self.replaced, (args, kwargs or {}))
        return function(*args, **kwargs)

    def replaced(self, value):
        return self.pairs.get(id(value), (value, value))[1]


def is_recomputing():
    """Whether the backward of a module around this one runs its original forward."""
    if torch._C._len_torch_function_stack() == 0:
        return False
    modes = _get_current_function_mode_stack()
    return any(hasattr(mode, "_kernelwright_stands_in") for mode in modes)


@contextlib.contextmanager
def as_at_first(device, random):
    """The generators as they were in the forward, for models that draw random numbers."""
    if random is None:
        yield
        return
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.set_rng_state(random[0])
        if on_gpu:
            torch.cuda.set_rng_state(random[1], device)
        yield


def random_state(device):
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state(device)] if device.type == "cuda" else state


def alias(tensor, again):
    """Another tensor with the same values to differentiate by; for `again`, one with a history."""
    if again and tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def gradients(fusion, module, constants, random, tensors, wanted, cotangents):
    """The gradients of the wanted tensors, by the original forward and autograd."""
    again = torch.is_grad_enabled()
    device = tensors[0].device
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        fresh = [alias(t, again) if w else t for t, w in zip(tensors, wanted, strict=True)]
        inputs, state = fresh[: fusion.inputs], fresh[fusion.inputs :]
        named = list(zip(fusion.state(module), state, strict=True))
        written = [named[i - fusion.inputs][0] for i in fusion.rewritten]
        pairs = [(w, w.detach().clone()) for w in written]
        pairs += [(own, given) for own, given in named if given is not None]
        with as_at_first(device, random), StandIns(pairs):
            results = fusion.original(fusion.plain(module), *inputs, *constants)
    pairs = zip(results, cotangents, strict=False)  # what buffers become has none
    used = [(r, c) for r, c in pairs if c is not None and r.requires_grad]
    found = iter(())
    if used:
        found = iter(
            torch.autograd.grad(
                [r for r, _ in used],
                [f for f, w in zip(fresh, wanted, strict=True) if w],
                [c for _, c in used],
                create_graph=again,
                allow_unused=True,
            )
        )
    return [next(found, None) if w else None for w in wanted]


def kept(tensors, fusion):
    """What backward needs of a call: a buffer that the call rewrites only where outputs read it."""
    if not fusion.rewritten:
        return tensors
    found = list(tensors)
    for i in fusion.rewritten:
        found[i] = found[i].clone() if i in fusion.recalled else None
    return found


def own(results, alone):
    """These results as tensors of their own, which may be written: nobody else sees their memory.

    Autograd refuses that for a view that comes out of a function.
    """
    hidden = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(hidden):
        return tuple(
            torch.ops.aten.alias.default(x) if i in alone and x._is_view() else x
            for i, x in enumerate(results)
        )
