"""The candidate's weights are the original's, and stay live: no copy of them is kept from a call.

In: a Subject. Out: Findings on state_dict, and on results after the weights were changed, in all
the ways in which people change, copy, store and cast them.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from kernelwright.verify import cases, parameters
from kernelwright.verify.attributes import preserved
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, copied, forward, map_floating
from kernelwright.verify.judge import Named, attempted, in_short, judge
from kernelwright.verify.parameters import State
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, eager_accepts


def state_dict(subject: Subject) -> Finding:
    """Same keys in the same order, same initial values, strict loading both ways."""
    if subject.initial_mismatch is not None:
        return Finding(False, subject.initial_mismatch)
    for source, target, way in (
        (subject.candidate, subject.original, "from ModelNew into Model"),
        (subject.original, subject.candidate, "from Model into ModelNew"),
    ):
        try:
            target.load_state_dict(source.state_dict(), strict=True)
        except RuntimeError as error:
            return Finding(False, f"load_state_dict {way} raised: {error}")
    count = len(subject.original.state_dict())
    return Finding(True, f"{count} tensors of the same names and values, loaded both ways")


def after_load_state_dict(subject: Subject) -> Finding:
    """New weights through load_state_dict after the first call."""
    return _after_change(subject, _load)


def after_data_write(subject: Subject) -> Finding:
    """New weights through `.data`, which bumps no version counter, after the first call."""
    return _after_change(subject, _write_data)


def after_saving(subject: Subject) -> Finding:
    """New weights from a file that torch.save wrote, after the first call."""

    def load(module: nn.Module, state: State) -> None:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        _load(module, torch.load(file, weights_only=True))

    return _after_change(subject, load)


def after_optimizer_step(subject: Subject) -> Finding:
    """New weights from a step of SGD after the first call, its gradients given."""
    if not list(subject.original.parameters()):
        return Finding(None, "the model has no parameters")
    before = subject.state
    subject.run_candidate(subject.draw(subject.small, 0))
    _step(subject.candidate)
    _step(subject.original)
    subject.set_reference_state(parameters.snapshot(subject.original))
    try:
        return judge(subject, cases.own(subject))
    finally:
        subject.set_state(before)


def in_deepcopy(subject: Subject) -> Finding:
    """A deepcopy made after the first call, with weights of its own."""
    return _in_copy(subject, copy.deepcopy)


def in_pickle(subject: Subject) -> Finding:
    """The whole module through pickle, after the first call, if the original can be pickled."""

    refused = attempted(lambda: _pickled(subject.original))
    if isinstance(refused, Exception):
        return Finding(None, f"the original cannot be pickled: {in_short(refused)}")
    return _in_copy(subject, _pickled)


def _pickled(module: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(module))
    return loaded


def in_float64(subject: Subject) -> Finding:
    """`.double()` after the first call, and back."""
    return _cast(subject, torch.float64)


def in_half(subject: Subject) -> Finding:
    """`.half()` after the first call, and back."""
    return _cast(subject, torch.float16)


def switched(subject: Subject) -> Finding:
    """`.eval()` and `.train()` to and fro, each followed by a call."""

    def call(module: nn.Module, inputs: Inputs) -> Named:
        found = Named()
        with preserved(module):
            for name in ("eval", "train", "eval again"):
                module.train(name == "train")
                found[f"the result in {name}"] = forward(module, copied(inputs))
        found["the result in its own mode"] = forward(module, inputs)
        return found

    return judge(subject, cases.renamed(cases.own(subject), "calls in eval and train mode"), call)


def _cast(subject: Subject, dtype: torch.dtype) -> Finding:
    """A call in its own type, one in the other, and one after the way back, whatever that lost."""

    def call(module: nn.Module, inputs: Inputs) -> Named:
        wide = module is subject.oracle
        found = Named({"the first result": forward(module, copied(inputs))})
        with _types_kept(module):
            _to(module, dtype, wide)
            cast = map_floating(lambda x: x.to(dtype).to(x.dtype if wide else dtype), inputs)
            found[f"the result in {dtype}"] = forward(module, cast)
        with _types_kept(module, rounded_to=dtype):
            found["the result after the way back"] = forward(module, inputs)
        return found

    name = f"a call in {str(dtype).removeprefix('torch.')} between two others"
    case = cases.renamed(cases.own(subject), name)
    if not eager_accepts(subject, Variation(case, call)):
        return Finding(None, f"eager does not run in {dtype}")
    return judge(subject, case, call)


def _to(module: nn.Module, dtype: torch.dtype, wide: bool) -> None:
    """The oracle gets the values that the cast leaves, and stays in float64."""
    module.to(dtype)
    if wide:
        module.double()


@contextmanager
def _types_kept(module: nn.Module, rounded_to: torch.dtype | None = None) -> Iterator[None]:
    """The data of all tensors as it was; inside of the block perhaps rounded to another type."""
    kept = [(x, x.data) for x in parameters.tensors(module).values()]
    for x, data in kept:
        if rounded_to is not None and x.is_floating_point():
            x.data = data.to(rounded_to).to(data.dtype)
    try:
        yield
    finally:
        for (x, data), now in zip(kept, parameters.tensors(module).values(), strict=True):
            x.data = data
            now.data = data


def _in_copy(subject: Subject, duplicate: Callable[[nn.Module], nn.Module]) -> Finding:
    kept = subject.candidate
    subject.run_candidate(subject.draw(subject.small, 0))
    subject.candidate = duplicate(kept)
    try:
        return _after_change(subject, _write_data)
    finally:
        subject.candidate = kept


def _step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for index, value in enumerate(module.parameters()):
        if value.requires_grad:
            steps = torch.arange(value.numel(), device=value.device).add(index).remainder(5).sub(2)
            value.grad = steps.view(value.shape).to(value)
    optimizer.step()
    optimizer.zero_grad()


def _after_change(subject: Subject, change: Callable[[nn.Module, State], None]) -> Finding:
    if not subject.state:
        return Finding(None, "the model has no parameters")
    before = subject.state
    subject.run_candidate(subject.draw(subject.small, 0))
    state = _other_weights(subject)
    subject.set_reference_state(state)
    change(subject.candidate, state)
    try:
        return judge(subject, cases.own(subject))
    finally:
        subject.set_state(before)


@torch.no_grad()
def _other_weights(subject: Subject) -> State:
    """Every parameter with columns scaled unevenly: no normalisation can hide the change."""
    torch.manual_seed(1)
    state = dict(subject.state)
    for name, value in subject.original.named_parameters(remove_duplicate=False):
        if value.is_floating_point():
            factors = torch.rand(value.shape[-1:], device=value.device, dtype=value.dtype) + 0.5
            state[name] = state[name] * factors
    return state


def _load(module: nn.Module, state: State) -> None:
    known = module.state_dict()
    module.load_state_dict({name: state.get(name, value) for name, value in known.items()})


def _write_data(module: nn.Module, state: State) -> None:
    for name, value in module.named_parameters(remove_duplicate=False):
        if name in state and state[name].shape == value.shape:
            value.data.copy_(state[name])
