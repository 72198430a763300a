"""How a process of verify makes its module and its inputs, as often as the judge asks.

In: a request that names files. Out: a Maker. All that is known of where modules come from is in
here, so that another source (a live module) is another Maker and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.problem import Problem, example_inputs, init_inputs, load_problem
from kernelwright.verify import saved
from kernelwright.verify.candidate import candidate_class
from kernelwright.verify.candidate import construct as construct_candidate
from kernelwright.verify.inputs import Inputs, set_seed


@dataclass(frozen=True)
class Maker:
    """Everything is made on `device`; `arguments` is None where nothing can be constructed anew."""

    device: torch.device
    first: nn.Module | None
    arguments: Inputs | None
    build: Callable[[Inputs], nn.Module]
    draw: Callable[[], Inputs]
    problem: Problem | None = None

    def make(self, given: Inputs | None, seed: int) -> nn.Module:
        """The module that was loaded, or one that is constructed now."""
        return (
            self.first if self.first is not None else self.construct(given or self.arguments, seed)
        )

    def construct(self, given: Inputs | None, seed: int) -> nn.Module:
        set_seed(seed)
        return self.build(given or Inputs((), {})).to(self.device)


def made(request: dict[str, Any]) -> Maker:
    model, candidate = Path(request["model"]), request["candidate"]
    is_candidate = request["role"] == "candidate"
    if model.suffix == saved.SUFFIX:
        return _of_saved(model, Path(candidate) if is_candidate else None, request)
    return _of_candidate(request) if is_candidate else _of_model(model, request)


def _of_model(model: Path, request: dict[str, Any]) -> Maker:
    problem = load_problem(model, request["device"], request["precision"], request["seed"])
    user = problem.user
    assert user is not None
    model_class = type(problem.module)
    return Maker(
        problem.device,
        problem.module,
        Inputs(*init_inputs(user, model)),
        lambda given: model_class(*given.args, **given.kwargs),
        lambda: Inputs(*example_inputs(user, model)),
        problem,
    )


def _of_candidate(request: dict[str, Any]) -> Maker:
    """ModelNew of the text that the judge has read; its own arguments if they cannot be sent."""
    path, device = Path(request["candidate"]), torch.device(request["device"])
    chosen = candidate_class(path, request["text"])
    given = request["arguments"]
    if given == "own":
        problem = load_problem(Path(request["model"]), "cpu", request["precision"])
        given = Inputs(problem.init_args, problem.init_kwargs)
    return Maker(
        device,
        None,
        given,
        lambda arguments: construct_candidate(chosen, arguments.args, path, arguments.kwargs),
        _nothing,
    )


def _of_saved(model: Path, candidate: Path | None, request: dict[str, Any]) -> Maker:
    device, module, draw = saved.loaded(model, candidate, request["precision"], request.get("text"))
    return Maker(device, module, None, _never, draw)


def _never(arguments: Inputs) -> nn.Module:
    raise AssertionError("a live module cannot be constructed again")


def _nothing() -> Inputs:
    raise AssertionError("the candidate draws no inputs")
