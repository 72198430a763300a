"""Checks that judge one case each: the same values as the original on these inputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernelwright.errors import BuildError
from kernelwright.verify import cases, statistic
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import forward
from kernelwright.verify.judge import in_short, judge, structure
from kernelwright.verify.replay import rng_state
from kernelwright.verify.subject import Subject

LARGER_SECONDS = 4.0  # what the check of a larger batch may cost


def runs(subject: Subject) -> Finding:
    """The first call: builds what is built lazily, and meets what is broken altogether."""
    inputs = subject.draw(subject.small, 0)
    try:
        subject.run_candidate(inputs)
    except BuildError:
        raise
    except Exception as error:
        return Finding(False, f"the first call raised {in_short(error)}")
    return Finding(True, f"the first call, at batch {subject.small}, returned")


def same_structure(subject: Subject) -> Finding:
    """Shape, dtype, device and strides of the outputs."""
    case = cases.own(subject)
    ours = subject.run_candidate(case.make(0))
    wrong = structure(ours, subject.run(subject.original, case.make(0)), case.strides)
    return Finding(wrong is None, wrong or "shape, dtype, device and strides are eager's")


def oracle(subject: Subject) -> Finding:
    """The file's own inputs, at their own size."""
    return judge(subject, cases.own(subject, subject.batch))


def on_distribution(subject: Subject, name: str) -> Finding:
    return judge(subject, cases.distribution(subject, name))


def on_own_inputs(subject: Subject) -> Finding:
    return judge(subject, cases.own(subject))


def on_layout(subject: Subject, name: str) -> Finding:
    case = cases.layout(subject, name)
    if case is None:
        return Finding(None, f"no input of this model can be {name}")
    return judge(subject, case)


def at_batch(subject: Subject, size: int) -> Finding:
    if not subject.resized:
        return Finding(None, "the model accepts no other batch size than its own")
    return judge(subject, cases.own(subject, size))


def at_larger_batch(subject: Subject) -> Finding:
    size = 2 * subject.batch + 1
    cost = 4 * subject.seconds * size / max(subject.batch, 1)
    if cost > LARGER_SECONDS:
        return Finding(None, f"batch {size} would take about {cost:.0f} s on this device")
    return at_batch(subject, size)


def in_eval_mode(subject: Subject) -> Finding:
    if not subject.original.training:
        return Finding(None, "the model is in eval mode already")
    with subject.mode(training=False):
        return judge(subject, cases.own(subject))


def random_numbers(subject: Subject) -> Finding:
    """Which random numbers the candidate draws, and where it leaves the generator."""
    if not subject.random:
        return Finding(None, "the model draws no random numbers in its mode")
    case = cases.own(subject)
    finding = judge(subject, case)
    if not finding.passed or statistic.draws_other_numbers(subject, case, forward):
        return finding
    left = [_generator_after(subject, ours) for ours in (True, False)]
    if not all(map(torch.equal, *left)):
        return Finding(
            False,
            "the candidate draws eager's numbers, but leaves the generator elsewhere: "
            "whatever is drawn after it will differ",
        )
    return replace(
        finding, detail=f"the candidate draws the very numbers of eager; {finding.detail}"
    )


def _generator_after(subject: Subject, ours: bool) -> tuple[torch.Tensor, ...]:
    inputs = subject.draw(subject.small, 0)
    subject.run_candidate(inputs) if ours else subject.run(subject.original, inputs)
    return rng_state(subject.device)
