"""Models constructed otherwise than the one that was compiled: other arguments, another seed.

In: a Subject. Out: Findings. A constant of the first instance, be it an argument of the constructor
or a tensor that was drawn there, must not be a constant of the next one.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from kernelwright.verify import cases
from kernelwright.verify.attributes import preserved
from kernelwright.verify.candidate import first_difference
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import forward, map_tensors
from kernelwright.verify.judge import attempted, in_short, judge
from kernelwright.verify.maker import Arguments
from kernelwright.verify.subject import SEED, Subject
from kernelwright.verify.tally import Tally
from kernelwright.verify.variations import UNKNOWN, literals, others

OTHER_SEED = 1234567
SECONDS = 8.0  # constructing takes longer than calling
FIXED = "the module is a live one and cannot be constructed again"


def other_arguments(subject: Subject) -> Finding:
    """The constructor's arguments, one at a time, where Model accepts them and still runs."""
    if subject.maker.arguments is None:
        return Finding(None, FIXED)
    given, tally = subject.maker.arguments, Tally(SECONDS)
    can_ask = _runs_on_meta(subject, given)
    for arguments in _in_turns(_varied(subject.maker.model_class, given)):
        if can_ask and not _runs_on_meta(subject, arguments):
            continue
        if tally.over:
            tally.left_out += tally.wrong is None
        else:
            tally.add(_with_arguments(subject, arguments))
    return tally.finding(
        "other ways to construct it", "Model runs with no other arguments than the file's"
    )


def other_seed(subject: Subject) -> Finding:
    """Both constructed under another seed and compared as they are: no weight is copied."""
    arguments = subject.maker.arguments
    if arguments is None:
        return Finding(None, FIXED)
    original = subject.maker.make_original(arguments, OTHER_SEED)
    original.train(subject.original.training)
    candidate = subject.maker.make_candidate(arguments, OTHER_SEED)
    with subject.rebuilt(original, candidate):
        if (difference := first_difference(original, candidate)) is not None:
            return Finding(False, f"constructed under seed {OTHER_SEED}: {difference}")
        case = cases.own(subject)
        return judge(subject, cases.renamed(case, f"modules constructed under seed {OTHER_SEED}"))


def _with_arguments(subject: Subject, arguments: Arguments) -> Finding:
    original = attempted(lambda: subject.maker.make_original(arguments, SEED))
    if isinstance(original, Exception):
        return Finding(None, f"Model({arguments}) raises {in_short(original)}")
    original.train(subject.original.training)
    with preserved(original), torch.no_grad():
        ran = attempted(lambda: forward(original, subject.draw(subject.small, 0)))
    if isinstance(ran, Exception):
        return Finding(None, f"Model({arguments}) does not run on the file's inputs")
    candidate = attempted(lambda: _loaded(subject, arguments, original))
    if isinstance(candidate, Exception):
        said = f"Model({arguments}) runs, but ModelNew({arguments}) raises {in_short(candidate)}"
        return Finding(False, said)
    with subject.rebuilt(original, candidate):
        return judge(subject, cases.renamed(cases.own(subject), f"ModelNew({arguments})"))


def _runs_on_meta(subject: Subject, arguments: Arguments) -> bool:
    """Whether Model accepts the arguments and the file's inputs then, without any memory for it."""
    inputs = map_tensors(lambda x: x.to("meta"), subject.draw(subject.small, 0))

    def run() -> Any:
        with torch.device("meta"), torch.no_grad():
            model = subject.maker.model_class(*arguments.args, **arguments.kwargs)
            return forward(model.train(subject.original.training), inputs)

    return not isinstance(attempted(run), Exception)


def _loaded(subject: Subject, arguments: Arguments, original: nn.Module) -> nn.Module:
    candidate = subject.maker.make_candidate(arguments, SEED)
    candidate.load_state_dict(original.state_dict(), strict=True)
    return candidate


def _in_turns(groups: Iterable[list[Arguments]]) -> Iterator[Arguments]:
    """The first of every group, then the second ones: time may run out."""
    for row in itertools.zip_longest(*groups):
        yield from (arguments for arguments in row if arguments is not None)


def _varied(model_class: type[nn.Module], arguments: Arguments) -> Iterator[list[Arguments]]:
    """For each of the given arguments, and for each default that was not given, other values."""
    signature = inspect.signature(model_class)
    given = signature.bind(*arguments.args, **arguments.kwargs).arguments
    for index, value in enumerate(arguments.args):
        name = list(signature.parameters)[min(index, len(signature.parameters) - 1)]
        before, after = arguments.args[:index], arguments.args[index + 1 :]
        found = others(value, [*literals(model_class, name), UNKNOWN])
        yield [Arguments((*before, other, *after), arguments.kwargs) for other in found]
    for name, parameter in signature.parameters.items():
        value = arguments.kwargs.get(name, parameter.default)
        positional = name in given and name not in arguments.kwargs
        if positional or value is parameter.empty:
            continue
        found = others(value, [*literals(model_class, name), UNKNOWN])
        yield [Arguments(arguments.args, {**arguments.kwargs, name: other}) for other in found]
