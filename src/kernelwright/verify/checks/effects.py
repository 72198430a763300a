"""What a call leaves behind: inputs, parameters and buffers are as the original leaves them.

In: a Subject. Out: Findings. The original is the measure here too: where it writes to its input or
its running statistics, so must the candidate.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify import cases, parameters
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import same_bits
from kernelwright.verify.judge import compare, conclude, judge
from kernelwright.verify.subject import Subject, widen

STEPS = 3


def side_effects(subject: Subject) -> Finding:
    """Inputs and parameters, bit by bit, after one call of each."""
    case = cases.own(subject)
    ours, theirs = case.make(0), case.make(0)
    subject.run_candidate(ours)
    subject.run(subject.original, theirs)
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True)
    for index, (a, b) in enumerate(pairs):
        if isinstance(a, Tensor) and not same_bits(a, b):
            return Finding(False, f"input {index} was changed by the call")
    expected = dict(subject.original.named_parameters())
    for name, value in subject.candidate.named_parameters():
        if name in expected and not same_bits(value, expected[name]):
            return Finding(False, f"parameter {name} was changed by the call")
    return Finding(True, "inputs and parameters are bit for bit what they were")


def buffers(subject: Subject) -> Finding:
    """Running statistics after a few training steps, and the outputs in eval mode after them."""
    names = [name for name, _ in subject.original.named_buffers()]
    if not names:
        return Finding(None, "the model has no buffers")
    before = subject.state
    with subject.mode(training=True):
        if subject.random:
            return Finding(None, "the model is random in training mode")
        stepped = [_after_steps(subject, module) for module in _modules(subject)]
    name = f"the buffers after {STEPS} training steps"
    if any(set(names) - set(state) for state in stepped):
        return Finding(False, f"the candidate lacks some of the buffers {', '.join(names)}")
    trial = compare(name, *stepped)
    finding = trial if isinstance(trial, Finding) else conclude(name, trial)
    if finding.passed:
        subject.set_state({**before, **stepped[1]})
        with subject.mode(training=False):
            in_eval = judge(subject, cases.own(subject))
        subject.set_state(before)
        return finding if in_eval.passed else in_eval
    return finding


def _modules(subject: Subject) -> tuple[nn.Module, nn.Module, nn.Module]:
    return subject.candidate, subject.original, subject.oracle


def _after_steps(subject: Subject, module: nn.Module) -> dict[str, Any]:
    """The module's buffers after steps on different data, from the common start."""
    names = [name for name, _ in subject.original.named_buffers()]
    start = subject.state
    for seed in range(STEPS):
        inputs = cases.distribution(subject, "normal").make(seed)
        if module is subject.oracle:
            subject.run_oracle(widen(inputs))
        elif module is subject.candidate:
            subject.run_candidate(inputs)
        else:
            subject.run(module, inputs)
        subject.state = {**start, **parameters.snapshot_buffers(module)}
    subject.state = start
    ended = parameters.snapshot_buffers(module)
    parameters.write_buffers(module, start)
    return {name: ended[name] for name in names if name in ended}
