"""Gradients as eager's, in every way that people take them, with the kernels running meanwhile.

In: a Subject. Out: Findings. Two draws may decide, because a kink (ReLU at 0) can fall to either
side by rounding. Of very large gradients sixteen million elements are compared once, and a million
of them in the other checks.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs
from kernelwright.verify.judge import judge
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

BATCH = 8
OTHER_DRAW = 100
APART = (
    "has results that are not in each other's graph, as they are in eager: hooks on a result, and "
    "its .grad, leave out what comes from the others"
)

FOR_NOTHING = (
    "calls hooks of inputs and parameters, with None or zeros, that the result whose backward runs "
    "does not depend on; eager does not call them"
)


def plain(subject: Subject) -> Finding:
    """Outputs, whether they require gradients, and the gradients of all inputs and parameters."""
    return _judged(subject, "the gradients", "plain", whole=True)


def twice(subject: Subject) -> Finding:
    """The gradients of the gradients, where eager has them."""
    return _judged(subject, "the second derivatives", "twice")


def frozen(subject: Subject) -> Finding:
    """Every other parameter frozen, inputs without gradients; then nothing that requires any."""
    if not subject.names.parameters:
        return Finding(None, "the model has no parameters")
    return _judged(subject, "gradients with frozen parameters", "frozen")


def hooks(subject: Subject) -> Finding:
    """Hooks of tensors, parameters and modules: called once each, and what they change counts.

    A kernel that gives several results has one backward for all of them, so one result is not part
    of another's graph as it may be in eager, and a tensor that only the others depend on has its
    hooks called for nothing. Those are limits.
    """
    finding = _judged(subject, "gradients with hooks", "hooks")
    if not finding.passed:
        return finding
    further = {"between": APART, "unreached": FOR_NOTHING}
    found = {way: _judged(subject, "gradients of outputs", way) for way in further}
    limits = tuple(limit for way, limit in further.items() if found[way].passed is False)
    return replace(finding, limits=limits) if limits else finding


def optimizer_step(subject: Subject) -> Finding:
    """Two whole steps of SGD: forward, backward, step."""
    if not subject.names.parameters:
        return Finding(None, "the model has no parameters")
    return _judged(subject, "the parameters after 2 steps of SGD", "optimizer steps")


def inference(subject: Subject) -> Finding:
    """Under inference_mode, and the gradients after it, which must not meet inference tensors.

    The candidate is a new one: its very first call is one in inference_mode.
    """
    name, arguments = "inference_mode and gradients after it", subject.reference.arguments
    if not isinstance(arguments, Inputs):
        return _judged(subject, name, "inference_mode")
    seed = subject.job.number("construction") % 2**31
    request = {"arguments": arguments, "seed": seed, "training": subject.training}
    with subject.candidate_instead("construct", **request, unseen=True):
        subject.give(subject.side, subject.state)
        return _judged(subject, name, "inference_mode")


def _judged(
    subject: Subject, name: str, way: str, whole: bool = False, size: int = BATCH
) -> Finding:
    finding = _on_draw(subject, name, way, whole, size, 0)
    if finding.passed is False:
        return _on_draw(subject, name, way, whole, size, OTHER_DRAW)
    return finding


def _on_draw(subject: Subject, name: str, way: str, whole: bool, size: int, start: int) -> Finding:
    size = min(subject.small, size)
    case = Case(
        f"{name} at batch {size}", lambda draw: subject.draw(size, start + draw), strides=False
    )
    seed = subject.job.number("cotangents", name, start)
    return judge(subject, case, Act("gradients", {"way": way, "whole": whole, "seed": seed}))
