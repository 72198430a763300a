"""Models that a test writes as one function, and their plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS
from kernelwright.plan.reasons import Code
from kernelwright.problem import problem_from_module


class Written(nn.Module):
    """A module whose forward is a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def planned(
    function: Callable[..., Any], *shape: int, target: str = "cuda", **parts: Any
) -> Compiled:
    problem = problem_from_module(Written(function, **parts).eval(), (torch.randn(*shape),))
    return compile_problem(problem, target=target, policy=ALWAYS)


def refusal_codes(compiled: Compiled) -> list[Code]:
    return [r.why.code for r in compiled.planned.refusals]
