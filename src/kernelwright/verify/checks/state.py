"""The candidate's weights are the original's, and stay live: no copy of them is kept from a call.

In: a Subject. Out: Findings on state_dict, and on results after the weights were changed by
load_state_dict, by a `.data` write, and in a deepcopy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.judge import judge
from kernelwright.verify.parameters import State
from kernelwright.verify.subject import Subject


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


def in_deepcopy(subject: Subject) -> Finding:
    """A deepcopy made after the first call, with weights of its own."""
    kept = subject.candidate
    subject.run_candidate(subject.draw(subject.small, 0))
    subject.candidate = copy.deepcopy(kept)
    try:
        return _after_change(subject, _write_data)
    finally:
        subject.candidate = kept


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
