"""Order on a GPU: the work of a call is on the current stream, and in a graph that captured it.

In: a Subject. Out: Findings; on a CPU none of this applies.
"""

from __future__ import annotations

import torch

from kernelwright.verify import cases
from kernelwright.verify.certificate import Finding
from kernelwright.verify.judge import attempted, judge
from kernelwright.verify.side import Raised
from kernelwright.verify.sides import Act
from kernelwright.verify.subject import Subject

NO_GPU = "there are no streams on this device"
REPLAYS = 3


def on_another_stream(subject: Subject) -> Finding:
    """A stream that sleeps and then writes the inputs; nobody waits for anything else."""
    return _judged(subject, "a call on another stream, behind a sleep", "on a stream", 2)


def unsynchronised(subject: Subject) -> Finding:
    """Inputs written late and overwritten early, all on the current stream."""
    return _judged(subject, "inputs written just before and overwritten after", "unsynchronised", 2)


def replayed(subject: Subject) -> Finding:
    """A CUDA graph captured on some inputs and replayed on others, where eager can be captured."""
    if subject.device.type != "cuda":
        return Finding(None, NO_GPU)
    act = Act("in a graph")
    inputs = cases.together(cases.own(subject), 1 + REPLAYS, 800).make(0)
    if isinstance(refused := attempted(lambda: subject.original(inputs, act)), Raised):
        return Finding(None, f"eager cannot be captured: {refused}")
    return _judged(subject, "replays of a captured graph on new data", act.name, 1 + REPLAYS)


def on_the_second_device(subject: Subject) -> Finding:
    """On another GPU than the current one, and back."""
    count = torch.cuda.device_count() if subject.device.type == "cuda" else 0
    if count < 2:
        return Finding(None, "there is no second device of this kind here")
    return on_device(subject, f"cuda:{((subject.device.index or 0) + 1) % count}")


def on_device(subject: Subject, device: str) -> Finding:
    case = cases.renamed(cases.own(subject), f"calls on {device} and back")
    act = Act("on another device", {"device": device})
    if isinstance(refused := attempted(lambda: subject.original(case.make(0), act)), Raised):
        return Finding(None, f"the model cannot be called on {device}: {refused}")
    return judge(subject, case, act)


def _judged(subject: Subject, name: str, act: str, count: int) -> Finding:
    if subject.device.type != "cuda":
        return Finding(None, NO_GPU)
    case = cases.renamed(cases.together(cases.own(subject), count, 800), name)
    return judge(subject, case, Act(act))
