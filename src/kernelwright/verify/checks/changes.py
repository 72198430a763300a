"""What people change in a module after they have compiled it: attributes and sublayers.

In: a Subject. Out: Findings. A change is made alike to candidate, original and oracle, called
through, compared, and undone. Running the original forward then is right; ignoring the change is
not. A candidate that does not call a sublayer at all, as kernels written by hand do not, is told so
as a limit of what was certified, not as a failure: whoever replaces that sublayer must know it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject
from kernelwright.verify.tally import Variation, judge_all, judge_or_limit


def attributes(subject: Subject) -> Finding:
    """Numbers, strings and plain tensors of every module, changed after the first call."""
    known = subject.about["attributes"]
    listed = subject.reference.side.ask("list", what="attributes")["value"]
    variations = []
    for item in listed:
        path, name = item["path"], item["name"]
        if name in known.get(path, ()):
            where = f"{path}.{name}" if path else name
            label = "another tensor" if item["scaled"] else repr(item["value"])
            case = cases.renamed(cases.own(subject), f"the model with {where} changed to {label}")
            variations.append(Variation(case, Act("with attribute", item), optional=True))
    return judge_all(
        subject, variations, "attributes changed", "no attribute of both modules can be changed"
    )


def submodules(subject: Subject) -> Finding:
    """Sublayers replaced, wrapped, without bias, pruned and parametrized, after the first call."""
    return judge_or_limit(
        subject,
        _replacements(subject),
        "changes of sublayers",
        "the model has no sublayers to change",
        "does not call {where}: it is no longer right if that sublayer is replaced",
    )


def _replacements(subject: Subject) -> Iterator[tuple[str, Variation]]:
    for item in subject.reference.side.ask("list", what="sublayers")["value"]:
        if item["path"] in subject.about["modules"]:
            where = item["path"] or "the model"
            case = cases.renamed(cases.own(subject), f"the model with {where} {item['kind']}")
            yield item["path"], Variation(case, Act("with sublayer", item), optional=True)
