"""Gradients, in every way that people take them.

In: a module and inputs. Out: results, gradients and what autograd knows of them, by name. The
forward is an ordinary call with gradients enabled, no `no_grad` around it. Cotangents are the last
argument of the inputs where they are given, so that no candidate knows them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.graph import is_differentiable
from kernelwright.verify import parameters
from kernelwright.verify.acts.here import Here
from kernelwright.verify.attributes import preserved
from kernelwright.verify.compare import real
from kernelwright.verify.inputs import (
    Inputs,
    Named,
    copied,
    forward,
    map_tensors,
    tensors_in,
)

STEPS = 2
RATE = 0.5
OUTPUTS = 8  # that get a hook and a backward of their own
ELEMENTS, WHOLE = 1 << 20, 1 << 24  # of a gradient that are looked at; of the plain ones


def taken(module: nn.Module, inputs: Inputs, here: Here, way: str, whole: bool, seed: int) -> Any:
    """One of WAYS with gradients enabled and none left over, before or after."""
    with torch.enable_grad(), preserved(module), _no_gradients(module), _cotangents(seed):
        found = WAYS[way](module, inputs, here)
    return map_tensors(lambda x: _thinned(x, WHOLE if whole else ELEMENTS), found)


def _thinned(x: Tensor, most: int = ELEMENTS) -> Tensor:
    """About that many elements, at an odd distance so that they meet every row and column."""
    if x.numel() <= most:
        return x
    return x.reshape(-1)[:: x.numel() // most | 1].clone()


@contextmanager
def _no_gradients(module: nn.Module) -> Iterator[None]:
    """`.grad` and `requires_grad` of every parameter, as they were."""
    before = [(value, value.grad, value.requires_grad) for value in module.parameters()]
    try:
        for value, _, _ in before:
            value.grad = None
        yield
    finally:
        for value, grad, required in before:
            value.requires_grad_(required)
            value.grad = grad


def backward(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    leaves = as_leaves(inputs)
    outputs = forward(module, leaves)
    return Named({**_kinds(outputs), **_gradients(outputs, _wanted(module, leaves))})


def backward_twice(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    leaves = as_leaves(inputs)
    wanted = _wanted(module, leaves)
    first = _gradients(forward(module, leaves), wanted, create_graph=True)
    again = [x for x in first.values() if x is not None and x.requires_grad]
    if wanted and not again:
        raise RuntimeError("no gradient can be differentiated once more")
    second = _gradients(again, wanted, "second derivative")
    for name, x in zip(list(second), wanted.values(), strict=True):
        if second[name] is None:  # no path and a path of zeros are the same derivative
            second[name] = torch.zeros_like(x)
    return second


def partly_frozen(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    found = Named()
    for index, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(index % 2 == 1 and is_differentiable(parameter.dtype))
    outputs = forward(module, inputs)
    found.update(_kinds(outputs))
    found.update(_gradients(outputs, _wanted(module, inputs)))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    found.update({f"all frozen: {k}": v for k, v in _kinds(forward(module, inputs)).items()})
    return found


def hooked(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """Gradients by `.backward()`, with hooks on all leaves and on the module, then on each output.

    Outputs have their backward one by one: what a hook on one sees of the gradients of another is
    another question (`between`).
    """
    called: list[str] = []
    leaves = as_leaves(inputs)
    wanted = _wanted(module, leaves)
    with _watched(wanted, called), _hooked_as_a_whole(module, called):
        outputs = [x for x in tensors_in(forward(module, leaves)) if x.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, list(map(_cotangent, outputs)), retain_graph=True)
    for i, x in enumerate(outputs[:OUTPUTS]):
        own = _hook(x, _noted(called, f"output {i}", 0.5))
        torch.autograd.backward(x, _cotangent(x), retain_graph=True)
        own.remove()
    found = Named({"the hooks called": ", ".join(sorted(called))})
    found.update({f"the gradient of {name}": x.grad for name, x in wanted.items()})
    return found


def unreached(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """Which hooks of leaves the backward of one output calls, if only for nothing."""
    called: list[str] = []
    leaves = as_leaves(inputs)
    outputs = [x for x in tensors_in(forward(module, leaves)) if x.requires_grad]
    with _watched(_wanted(module, leaves), called):
        for x in outputs[:OUTPUTS]:
            torch.autograd.backward(x, _cotangent(x), retain_graph=True)
            called.append("the next")
    return Named({"the hooks called": ", ".join(_sorted_between(called, "the next"))})


def _sorted_between(names: list[str], mark: str) -> Iterator[str]:
    """In one order whatever order autograd took, but for the marks."""
    start = 0
    for end, name in enumerate(names):
        if name == mark:
            yield from (*sorted(names[start:end]), mark)
            start = end + 1


@contextmanager
def _watched(wanted: dict[str, Tensor], called: list[str]) -> Iterator[None]:
    """Hooks on all of these, which note their calls, and double the gradients."""
    with ExitStack() as stack:
        for name, x in wanted.items():
            stack.callback(_hook(x, _noted(called, name, 2.0)).remove)
            added = x.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda x, name=name: called.append(f"{name} added")
            )
            stack.callback(added.remove)
        yield


@contextmanager
def _hooked_as_a_whole(module: nn.Module, called: list[str]) -> Iterator[None]:
    handle = module.register_full_backward_hook(lambda *given: called.append("the module"))
    try:
        yield
    finally:
        handle.remove()


def _noted(called: list[str], name: str, factor: float) -> Callable[[Tensor | None], Tensor | None]:
    """A hook that multiplies what it is given; torch gives it None where nothing flows."""

    def hook(gradient: Tensor | None) -> Tensor | None:
        called.append(name)
        return None if gradient is None else gradient * factor

    return hook


def between(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    """What reaches each output from those that are computed of it."""
    outputs = [x for x in tensors_in(forward(module, as_leaves(inputs))) if x.requires_grad]
    for x in outputs:
        x.retain_grad()
    if outputs:
        torch.autograd.backward(outputs, [_cotangent(x) for x in outputs])
    return Named({f"the gradient of output {i}": x.grad for i, x in enumerate(outputs)})


def _hook(x: Tensor, hook: Callable[[Tensor | None], Tensor | None]) -> Any:
    return x.register_hook(hook)  # type: ignore[no-untyped-call]


def trained(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    before = parameters.snapshot(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    try:
        for _ in range(STEPS):
            outputs = tensors_in(forward(module, copied(inputs)))
            used = [x for x in outputs if x.requires_grad]
            if used:
                torch.autograd.backward(used, [_cotangent(x) / x.numel() for x in used])
            optimizer.step()
            optimizer.zero_grad()
        ended = parameters.snapshot(module)
        return Named({name: ended[name] for name, _ in module.named_parameters()})
    finally:
        parameters.write(module, before)


def in_inference_mode(module: nn.Module, inputs: Inputs, here: Here) -> Named:
    with torch.inference_mode():
        outputs = forward(module, copied(inputs))
        flags = tuple(x.is_inference() for x in tensors_in(outputs))
        kept = map_tensors(Tensor.clone, outputs)
    found = Named({"is_inference of the outputs": flags, "the outputs in inference_mode": kept})
    found.update(backward(module, inputs, here))
    return found


def as_leaves(inputs: Inputs) -> Inputs:
    """Every input that gradients can flow to as a leaf that requires them."""
    return map_tensors(
        lambda x: x.detach().requires_grad_() if is_differentiable(x.dtype) else x, inputs
    )


def _wanted(module: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """What gradients are asked for, by name."""
    found = {f"input {i}": x for i, x in enumerate(tensors_in(inputs))}
    found.update(module.named_parameters())
    return {name: x for name, x in found.items() if x.requires_grad}


def _kinds(outputs: Any) -> dict[str, Any]:
    """The outputs, and what autograd knows of them."""
    found = tensors_in(outputs)
    return {
        "requires_grad of the outputs": tuple(x.requires_grad for x in found),
        "grad_fn of the outputs": tuple(x.grad_fn is not None for x in found),
        "the outputs": map_tensors(lambda x: x.detach().clone(), outputs),
    }


def _gradients(
    outputs: Any, wanted: dict[str, Tensor], noun: str = "gradient", create_graph: bool = False
) -> Named:
    used = [x for x in tensors_in(outputs) if x.requires_grad]
    if not used or not wanted:
        return Named()
    grads = torch.autograd.grad(
        used,
        list(wanted.values()),
        [_cotangent(x) for x in used],
        allow_unused=True,
        create_graph=create_graph,
    )
    return Named({f"the {noun} of {name}": x for name, x in zip(wanted, grads, strict=True)})


_seed = 0


@contextmanager
def _cotangents(seed: int) -> Iterator[None]:
    """Which cotangents this act takes; the judge draws the seed for every act."""
    global _seed
    _seed = seed
    yield


def _cotangent(x: Tensor) -> Tensor:
    """Quarters from -3/4 to 3/4 in an order of the seed: no dtype rounds them."""
    generator = torch.Generator().manual_seed(_seed + x.numel())
    drawn = torch.randint(-3, 4, tuple(real(x).shape), generator=generator)
    found = drawn.to(x.device, real(x).dtype).div(4)
    return torch.view_as_complex(found) if x.is_complex() else found


WAYS: dict[str, Callable[[nn.Module, Inputs, Here], Named]] = {
    "plain": backward,
    "twice": backward_twice,
    "frozen": partly_frozen,
    "hooks": hooked,
    "unreached": unreached,
    "between": between,
    "optimizer steps": trained,
    "inference_mode": in_inference_mode,
}
