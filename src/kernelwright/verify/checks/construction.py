"""Models constructed otherwise than the one that was compiled: other arguments, another seed.

In: a Subject. Out: Findings. A constant of the first instance, be it an argument of the constructor
or a tensor that was drawn there, must not be a constant of the next one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import nn

from kernelwright.verify import cases
from kernelwright.verify.attributes import preserved
from kernelwright.verify.candidate import first_difference
from kernelwright.verify.certificate import Finding
from kernelwright.verify.judge import attempted, in_short, judge
from kernelwright.verify.maker import Arguments
from kernelwright.verify.subject import SEED, Subject
from kernelwright.verify.tally import Tally
from kernelwright.verify.variations import UNKNOWN, literals, others

OTHER_SEED = 1234567
FIXED = "the module is a live one and cannot be constructed again"


def other_arguments(subject: Subject) -> Finding:
    """The constructor's arguments, one at a time, where Model accepts them and still runs."""
    if subject.maker.arguments is None:
        return Finding(None, FIXED)
    tally = Tally()
    for arguments in _varied(subject.maker.model_class, subject.maker.arguments):
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
    with subject.rebuilt(original, original), preserved(original):
        ran = attempted(lambda: subject.run(original, subject.draw(subject.small, 0)))
    if isinstance(ran, Exception):
        return Finding(None, f"Model({arguments}) does not run on the file's inputs")
    candidate = attempted(lambda: _loaded(subject, arguments, original))
    if isinstance(candidate, Exception):
        said = f"Model({arguments}) runs, but ModelNew({arguments}) raises {in_short(candidate)}"
        return Finding(False, said)
    with subject.rebuilt(original, candidate):
        return judge(subject, cases.renamed(cases.own(subject), f"ModelNew({arguments})"))


def _loaded(subject: Subject, arguments: Arguments, original: nn.Module) -> nn.Module:
    candidate = subject.maker.make_candidate(arguments, SEED)
    candidate.load_state_dict(original.state_dict(), strict=True)
    return candidate


def _varied(model_class: type[nn.Module], arguments: Arguments) -> Iterator[Arguments]:
    """The given arguments with one of them changed, then defaults that were not given."""
    signature = inspect.signature(model_class)
    given = signature.bind(*arguments.args, **arguments.kwargs).arguments
    for index, value in enumerate(arguments.args):
        name = list(signature.parameters)[min(index, len(signature.parameters) - 1)]
        for other in others(value, [*literals(model_class, name), UNKNOWN]):
            args = (*arguments.args[:index], other, *arguments.args[index + 1 :])
            yield Arguments(args, arguments.kwargs)
    for name, parameter in signature.parameters.items():
        value = arguments.kwargs.get(name, parameter.default)
        positional = name in given and name not in arguments.kwargs
        if positional or value is parameter.empty:
            continue
        for other in others(value, [*literals(model_class, name), UNKNOWN]):
            yield Arguments(arguments.args, {**arguments.kwargs, name: other})
