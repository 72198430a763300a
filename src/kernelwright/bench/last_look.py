"""Is the candidate's result right, once more, after it was timed?

In: both modules and the sets of inputs that were timed. Out: verify's findings on them: the same
judge, the same rule, the same words. Another set of inputs is another draw.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import nn

from kernelwright.bench.inputs import InputSets
from kernelwright.problem import Problem
from kernelwright.verify.cases import Case
from kernelwright.verify.certificate import Finding
from kernelwright.verify.inputs import Inputs, map_tensors
from kernelwright.verify.judge import judge
from kernelwright.verify.sides import Local


def last_look(problem: Problem, candidate: nn.Module, sets: InputSets) -> list[Finding]:
    """The findings on the first and the last set that was timed."""
    sides = Local(problem.module, candidate, problem.device)
    start = time.perf_counter()
    sides.original(_copy(sets, 0))
    sides.seconds = time.perf_counter() - start
    orders = {"first": sets, "last": sets[::-1]} if len(sets) > 1 else {"first": sets}
    return [judge(sides, _case(name, order)) for name, order in orders.items()]


def _case(name: str, sets: InputSets) -> Case:
    return Case(f"the {name} inputs that were timed", partial(_copy, sets))


def _copy(sets: InputSets, draw: int) -> Inputs:
    return map_tensors(torch.Tensor.clone, sets[draw % len(sets)])
