"""Calls of forward, one or many, and what can be seen of them from outside.

In: a module and inputs; where an act makes several calls, the arguments are the Inputs of one call
each. Out: results, by name where there are several kinds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kernelwright.verify import attributes, parameters
from kernelwright.verify.acts.here import Here
from kernelwright.verify.inputs import (
    Inputs,
    Named,
    copied,
    forward,
    map_tensors,
    set_seed,
    tensors_in,
)
from kernelwright.verify.replay import rng_state

# Parts of the names of the torch functions that TF32 touches.
PRODUCTS = (
    *("linear", "matmul", "mm", "mv", "dot", "einsum"),
    *("conv", "attention", "lstm", "gru", "rnn"),
)

GROWN = 1.25  # times as large are weights that were moved
PAUSE_SECONDS = 0.1  # for whoever works on after a call

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

WAYS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "gradients": torch.enable_grad,
}


def once(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    return forward(module, inputs)


def inputs_after(module: nn.Module, inputs: Inputs, here: Here) -> list[Tensor]:
    """What a call leaves in its inputs."""
    forward(module, inputs)
    return [x.detach().clone() for x in tensors_in(inputs)]


def generator(module: nn.Module, inputs: Inputs, here: Here) -> Tensor:
    """Where the generators stand after a call."""
    forward(module, inputs)
    return torch.cat([x.cpu().reshape(-1) for x in rng_state(here.device)])


def multiplies(module: nn.Module, inputs: Inputs, here: Here) -> bool:
    """Whether forward calls any matrix product or convolution."""
    with _Products() as products:
        forward(module, inputs)
    return bool(products.seen)


class _Products(TorchFunctionMode):
    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= any(part in getattr(func, "__name__", "") for part in PRODUCTS)
        return func(*args, **(kwargs or {}))


def by_rows(module: nn.Module, inputs: Inputs, here: Here, groups: int) -> Any:
    """Results whose rows are those of the inputs, in groups that are judged each by itself."""
    batch = tensors_in(inputs)[0].shape[:1]
    outputs = forward(module, inputs)
    if any(x.shape[:1] != batch for x in tensors_in(outputs)):
        return outputs
    found = [map_tensors(lambda x, i=i: x[i::groups], outputs) for i in range(groups)]  # type: ignore[misc]
    return Named({f"the rows of group {i}": x for i, x in enumerate(found)})


def many(module: nn.Module, inputs: Inputs, here: Here, order: list[int], ways: list[str]) -> Any:
    """A call for each number in `order`, on that set of inputs, each in its way."""
    found = []
    for index, way in zip(order, ways, strict=True):
        with WAYS[way]():
            found.append(kept(forward(module, copied(inputs.args[index]))))
    return found


def kept(outputs: Any) -> Any:
    """Copies that no later call can reach."""
    return map_tensors(lambda x: x.detach().clone(), outputs)


def held(module: nn.Module, inputs: Inputs, here: Here, order: list[int] | None = None) -> Any:
    """All results, looked at only a while after the last call; perhaps in an `order` of inputs."""
    places = range(len(inputs.args)) if order is None else order
    found = [forward(module, copied(inputs.args[index])) for index in places]
    here.finish()
    time.sleep(PAUSE_SECONDS if order is not None else 0.0)
    return found


def repeated(module: nn.Module, inputs: Inputs, here: Here, seeds: list[int]) -> Any:
    """The same inputs again and again, the generator at a seed before each call."""
    found = []
    for seed in seeds:
        set_seed(seed)
        found.append(kept(forward(module, copied(inputs))))
        here.finish()
    return found


def in_threads(module: nn.Module, inputs: Inputs, here: Here, rounds: int) -> Any:
    """Every set of inputs in a thread of its own, all at once, `rounds` times."""
    count = len(inputs.args)
    found: list[list[Any]] = [[] for _ in range(count)]
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def work(index: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(rounds):
                    together.wait(timeout=60)
                    found[index].append(forward(module, copied(inputs.args[index])))
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next(
            (e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0]
        )
    return found


def with_threads(module: nn.Module, inputs: Inputs, here: Here, counts: list[int]) -> Named:
    """A call for each number of threads that torch may use."""
    before, found = torch.get_num_threads(), Named()
    try:
        for count in counts:
            torch.set_num_threads(count)
            found[f"the result with {count} threads"] = kept(forward(module, copied(inputs)))
    finally:
        torch.set_num_threads(before)
    return found


def several(module: nn.Module, inputs: Inputs, here: Here, calls: int, watched: list[str]) -> Named:
    """Calls in a row, and the plain attributes after them."""
    outputs = [forward(module, copied(inputs)) for _ in range(calls)]
    results = {f"the result of call {i + 1}": x for i, x in enumerate(outputs)}
    now = attributes.plain(module)
    return Named({**results, **{f"attribute {k}": now.get(k, "absent") for k in watched}})


def overlap(x: Tensor, y: Tensor) -> bool:
    if x.numel() == 0 or y.numel() == 0 or x.device != y.device:
        return False
    if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
        return False
    (a, b), (c, d) = _range(x), _range(y)
    return a < d and c < b


def _range(x: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    start = int(x.storage_offset()) * x.element_size()
    return start, start + (last + 1) * x.element_size()


def cast(module: nn.Module, inputs: Inputs, here: Here, dtype: torch.dtype) -> Named:
    """A call in its own type, one in the other, and one after the way back, whatever that lost."""
    found = Named({"the first result": forward(module, copied(inputs))})
    with parameters.types_kept(module):
        module.to(dtype)
        if here.wide:  # the oracle gets the values that the cast leaves, and stays in float64
            module.double()
        found[f"the result in {dtype}"] = forward(module, rounded(inputs, dtype, here.wide))
    with parameters.types_kept(module, rounded_to=dtype):
        found["the result after the way back"] = forward(module, inputs)
    return found


def moved(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """Weights that lie elsewhere and otherwise since the first call, and are other ones then."""
    found = Named({"the first result": kept(forward(module, copied(inputs)))})
    with parameters.types_kept(module):
        for rank, order in CHANNELS_LAST.items():
            if any(x.ndim == rank for x in module.parameters()):
                module.to(memory_format=order)  # type: ignore[call-overload]
                found[f"the result with weights in {order}"] = forward(module, copied(inputs))
        module.to("cpu")
        for value in module.parameters():
            value.data = value.data.mul(GROWN) if value.is_floating_point() else value.data
        module.to(here.device)
        found["the result after the way back"] = kept(forward(module, copied(inputs)))
    found["the result with the first weights"] = forward(module, inputs)
    return found


def rounded(inputs: Inputs, dtype: torch.dtype, wide: bool) -> Inputs:
    def one(x: Tensor) -> Tensor:
        return x.to(dtype).to(x.dtype if wide else dtype) if x.is_floating_point() else x

    return map_tensors(one, inputs)


def in_dtype(module: nn.Module, inputs: Inputs, here: Here, dtype: torch.dtype) -> Any:
    """Inputs of another type for the module as it is."""
    return forward(module, rounded(inputs, dtype, here.wide))


def autocast(module: nn.Module, inputs: Inputs, here: Here) -> Any:
    """Under torch.autocast, which the oracle has no use for."""
    with torch.autocast(here.device.type, torch.bfloat16, enabled=not here.wide):
        return forward(module, inputs)
