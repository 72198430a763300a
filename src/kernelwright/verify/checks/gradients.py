"""Gradients as eager's, in every way that people take them, with the kernels running meanwhile.

In: a Subject. Out: Findings. The forward is an ordinary call with gradients enabled, no `no_grad`
around it. Two draws may decide, because a kink (ReLU at 0) can fall to either side by rounding. Of
very large gradients all elements are compared once, and a million of them in the other checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernelwright.verify import parameters
from kernelwright.verify.attributes import preserved
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import (
    Call,
    Inputs,
    copied,
    forward,
    map_floating,
    map_tensors,
    tensors_in,
)
from kernelwright.verify.judge import Named, judge
from kernelwright.verify.subject import Subject

BATCH = 8
OTHER_SEED = 100
STEPS = 2
RATE = 0.05
ELEMENTS = 1 << 20


def gradients(subject: Subject) -> Finding:
    """Outputs, whether they require gradients, and the gradients of all inputs and parameters."""
    return _judged(subject, "the gradients", backward, whole=True)


def twice(subject: Subject) -> Finding:
    """The gradients of the gradients, where eager has them."""
    return _judged(subject, "the second derivatives", backward_twice)


def frozen(subject: Subject) -> Finding:
    """Every other parameter frozen, inputs without gradients; then nothing that requires any."""
    if len(list(subject.original.parameters())) == 0:
        return Finding(None, "the model has no parameters")
    return _judged(subject, "gradients with frozen parameters", partly_frozen)


def hooks(subject: Subject) -> Finding:
    """Hooks of tensors, parameters and modules: called once each, and what they change counts."""
    return _judged(subject, "gradients with hooks", hooked)


def in_place(subject: Subject) -> Finding:
    """The outputs changed in place before the backward, as eager allows it."""
    return _judged(subject, "gradients of outputs changed in place", changed_in_place)


def checkpointed(subject: Subject) -> Finding:
    """Under torch.utils.checkpoint, which runs forward once more in the backward."""
    return _judged(subject, "gradients under checkpoint", under_checkpoint)


def optimizer_step(subject: Subject) -> Finding:
    """Two whole steps of SGD: forward, backward, step."""
    if len(list(subject.original.parameters())) == 0:
        return Finding(None, "the model has no parameters")
    return _judged(subject, f"the parameters after {STEPS} steps of SGD", steps)


def inference(subject: Subject) -> Finding:
    """Under inference_mode; and the gradients after it, which must not meet inference tensors."""
    return _judged(subject, "inference_mode and gradients after it", in_inference_mode)


def _judged(subject: Subject, name: str, call: Call, whole: bool = False) -> Finding:
    finding = _on_seed(subject, name, call, whole, 0)
    return _on_seed(subject, name, call, whole, OTHER_SEED) if finding.passed is False else finding


def _on_seed(subject: Subject, name: str, call: Call, whole: bool, start: int) -> Finding:
    size = min(subject.small, BATCH)
    draw: Callable[[int], Inputs] = lambda seed: subject.draw(size, start + seed)  # noqa: E731

    def fresh(module: nn.Module, inputs: Inputs) -> Any:
        """The call with gradients enabled and none left over, before or after."""
        with torch.enable_grad(), preserved(module), _no_gradients(module):
            found = call(module, inputs)
        return found if whole else map_tensors(_thinned, found)

    return judge(subject, Case(f"{name} at batch {size}", draw, strides=False), fresh)


def _thinned(x: Tensor) -> Tensor:
    """About a million elements, at an odd distance so that they meet every row and column."""
    if x.numel() <= ELEMENTS:
        return x
    return x.reshape(-1)[:: x.numel() // ELEMENTS | 1].clone()


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


def backward(module: nn.Module, inputs: Inputs) -> Named:
    leaves = as_leaves(inputs)
    outputs = forward(module, leaves)
    return Named({**_kinds(outputs), **_gradients(outputs, _wanted(module, leaves))})


def backward_twice(module: nn.Module, inputs: Inputs) -> Named:
    leaves = as_leaves(inputs)
    wanted = _wanted(module, leaves)
    first = _gradients(forward(module, leaves), wanted, create_graph=True)
    again = [x for x in first.values() if x is not None and x.requires_grad]
    second = _gradients(again, wanted, "second derivative")
    for name, x in zip(list(second), wanted.values(), strict=True):
        if second[name] is None:  # no path and a path of zeros are the same derivative
            second[name] = torch.zeros_like(x)
    return second


def partly_frozen(module: nn.Module, inputs: Inputs) -> Named:
    found = Named()
    for index, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(index % 2 == 1 and parameter.is_floating_point())
    outputs = forward(module, inputs)
    found.update(_kinds(outputs))
    found.update(_gradients(outputs, _wanted(module, inputs)))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    found.update({f"all frozen: {k}": v for k, v in _kinds(forward(module, inputs)).items()})
    return found


def hooked(module: nn.Module, inputs: Inputs) -> Named:
    """Gradients by `.backward()`, with a hook that doubles on the first input and parameter."""
    called: list[str] = []

    def note(name: str, factor: float) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            called.append(name)
            return gradient * factor

        return hook

    leaves = as_leaves(inputs)
    wanted = _wanted(module, leaves)
    handles: list[Any] = [_hook(x, note(name, 2.0)) for name, x in wanted.items()]
    handles += [
        x.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda x, name=name: called.append(f"{name} added")
        )
        for name, x in wanted.items()
    ]
    handles.append(
        module.register_full_backward_hook(lambda m, got, given: called.append("the module"))
    )
    outputs = [x for x in tensors_in(forward(module, leaves)) if x.requires_grad]
    handles += [_hook(x, note(f"output {i}", 0.5)) for i, x in enumerate(outputs)]
    if outputs:
        torch.autograd.backward(outputs, [_cotangent(x) for x in outputs])
    for handle in handles:
        handle.remove()
    found = Named({"the hooks called": ", ".join(sorted(called))})
    found.update({f"the gradient of {name}": x.grad for name, x in wanted.items()})
    return found


def _hook(x: Tensor, hook: Callable[[Tensor], Tensor]) -> Any:
    return x.register_hook(hook)  # type: ignore[no-untyped-call]


def changed_in_place(module: nn.Module, inputs: Inputs) -> Named:
    leaves = as_leaves(inputs)
    outputs = [x for x in tensors_in(forward(module, leaves)) if x.is_floating_point()]
    for x in outputs:
        x.mul_(2.0)
    return Named({**_kinds(outputs), **_gradients(outputs, _wanted(module, leaves))})


def under_checkpoint(module: nn.Module, inputs: Inputs) -> Named:
    leaves = as_leaves(inputs)
    outputs = checkpoint(forward, module, leaves, use_reentrant=False)
    return Named({**_kinds(outputs), **_gradients(outputs, _wanted(module, leaves))})


def steps(module: nn.Module, inputs: Inputs) -> Named:
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


def in_inference_mode(module: nn.Module, inputs: Inputs) -> Named:
    with torch.inference_mode():
        outputs = forward(module, copied(inputs))
        flags = tuple(x.is_inference() for x in tensors_in(outputs))
        kept = map_tensors(Tensor.clone, outputs)
    found = Named({"is_inference of the outputs": flags, "the outputs": kept})
    found.update(backward(module, inputs))
    return found


def as_leaves(inputs: Inputs) -> Inputs:
    """Every floating input as a leaf that requires gradients."""
    return map_floating(lambda x: x.detach().requires_grad_(), inputs)


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


def _cotangent(x: Tensor) -> Tensor:
    """Quarters from -3/4 to 3/4, which no dtype rounds and no normalisation cancels."""
    steps = torch.arange(x.numel(), device=x.device).remainder(7).sub(3)
    return steps.to(x.dtype).div(4).view(x.shape)
