"""What a call leaves behind: inputs, parameters and buffers are as the original leaves them.

In: a Subject. Out: Findings. The original is the measure here too: where it writes to its input,
its running statistics or its attributes, so must the candidate.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelwright.verify import attributes, cases, parameters
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.compare import same_bits
from kernelwright.verify.inputs import Inputs, copied, forward
from kernelwright.verify.judge import Named, judge
from kernelwright.verify.subject import Subject

STEPS = 3
CALLS = 3


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

    def steps(seed: int) -> Inputs:
        """Inputs whose arguments are the inputs of one step each."""
        draw = cases.distribution(subject, "normal").make
        return Inputs(tuple(draw(STEPS * seed + step) for step in range(STEPS)), {})

    def train(module: nn.Module, inputs: Inputs) -> Named:
        for step in inputs.args:
            forward(module, step)
        ended = parameters.snapshot_buffers(module)
        return Named({f"buffer {name}": ended.get(name) for name in names})

    with subject.mode(training=True):
        finding = judge(subject, Case(f"the buffers after {STEPS} training steps", steps), train)
        ended = subject.run(subject.original, steps(0), train)
    if not finding.passed:
        return finding
    subject.set_state({**before, **dict(zip(names, ended.values(), strict=True))})
    with subject.mode(training=False):
        in_eval = judge(subject, cases.own(subject))
    subject.set_state(before)
    return finding if in_eval.passed else in_eval


def python_state(subject: Subject) -> Finding:
    """Plain attributes that forward changes, and the results that depend on them, call by call."""
    before = attributes.plain(subject.original)

    def several(module: nn.Module, inputs: Inputs) -> Named:
        outputs = [forward(module, copied(inputs)) for _ in range(CALLS)]
        results = {f"the result of call {i + 1}": x for i, x in enumerate(outputs)}
        now = attributes.plain(module)
        return Named({**results, **{f"attribute {k}": now.get(k, "absent") for k in watched}})

    watched: list[str] = []
    subject.run(subject.original, subject.draw(subject.small, 0), several)
    moved = attributes.changed(before, attributes.plain(subject.original))
    ours = attributes.plain(subject.candidate)
    known = dict.fromkeys([*before, *moved])
    watched += [name for name in known if name in ours or name in moved]
    finding = judge(subject, cases.renamed(cases.own(subject), f"{CALLS} calls in a row"), several)
    if not finding.passed:
        return finding
    told = f"forward changes {', '.join(moved)}" if moved else "forward changes no plain attribute"
    return replace(finding, detail=f"{told}; {finding.detail}")
