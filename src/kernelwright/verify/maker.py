"""How the original, the candidate and their inputs are made, as often as the checks ask for.

In: the paths of two files. Out: a Maker. All that `verify` knows of where modules come from is in
here, so that another source (a live module) is another Maker and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.problem import example_inputs, init_inputs, load_problem
from kernelwright.verify.candidate import candidate_class, construct
from kernelwright.verify.inputs import Inputs, on_device


@dataclass(frozen=True)
class Arguments:
    """Those of the constructor."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __str__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return ", ".join([*(repr(value) for value in self.args), *named])


@dataclass(frozen=True)
class Maker:
    """Everything is made on `device`; `arguments` is None where nothing can be constructed anew."""

    device: torch.device
    precision: str
    original: nn.Module
    model_class: type[nn.Module]
    candidate_path: Path
    candidate_class: type[nn.Module]
    arguments: Arguments | None
    draw: Callable[[], Inputs]

    def make_original(self, arguments: Arguments, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.model_class(*arguments.args, **arguments.kwargs).to(self.device)

    def make_candidate(self, arguments: Arguments, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        chosen, path = self.candidate_class, self.candidate_path
        return construct(chosen, arguments.args, path, arguments.kwargs).to(self.device)


def from_files(model: Path, candidate: Path, device: str, precision: str, seed: int) -> Maker:
    """The Model of one file and the ModelNew of another, the first built under the seed."""
    problem = load_problem(model, device, precision, seed)
    user = problem.user
    assert user is not None
    torch.manual_seed(seed)
    return Maker(
        problem.device,
        problem.precision,
        problem.module,
        type(problem.module),
        candidate,
        candidate_class(candidate),
        Arguments(*init_inputs(user, model)),
        lambda: on_device(Inputs(*example_inputs(user, model)), problem.device),
    )
