"""Is the candidate's result right, once more, after it was timed?

In: eager's and the candidate's modules and sets of inputs. Out: a sentence per problem found. The
oracle is the model in float64, with eager's random numbers; the candidate may be at most twice as
far from it as eager is, in rms, plus a few eps of the result's own rms. verify is the thorough
judge, also of candidates that draw other random numbers; this is the last look.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from kernelwright.bench.inputs import InputSets
from kernelwright.bench.roofline import tensors
from kernelwright.bench.variants import candidate_failure
from kernelwright.verify.inputs import Inputs, forward, widen
from kernelwright.verify.replay import Recorder, Replay, Unreplayable
from kernelwright.verify.statistic import are_other_numbers, flat

EPS_ALLOWED = 8.0


def compare(module: nn.Module, candidate: nn.Module, sets: InputSets) -> list[str]:
    """Problems with the candidate's results on these sets of inputs, none if they are right."""
    double = copy.deepcopy(module).double()
    return [p for inputs in sets for p in _compare(module, candidate, double, inputs)]


def _compare(
    module: nn.Module, candidate: nn.Module, double: nn.Module, inputs: Inputs
) -> list[str]:
    try:
        got = tensors(_seeded(candidate, inputs))
    except Exception as error:
        return [str(candidate_failure(error))]
    device = next((x.device for x in got), torch.device("cpu"))
    with Recorder(device) as recorder:
        eager = tensors(_seeded(module, inputs))
    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in eager]:
        return [f"the candidate returns {_kinds(got)} where eager returns {_kinds(eager)}"]
    if recorder.draws and _draws_other_numbers(module, inputs, got, eager):
        return []
    try:
        with Replay(recorder.draws, device):
            exact = tensors(_seeded(double, widen(inputs)))
    except Unreplayable:
        return []
    judged = (_judge(*three) for three in zip(got, eager, exact, strict=True))
    return [problem for problem in judged if problem]


def _draws_other_numbers(
    module: nn.Module, inputs: Inputs, got: list[torch.Tensor], eager: list[torch.Tensor]
) -> bool:
    return are_other_numbers(flat(got), flat(eager), flat(_seeded(module, inputs, seed=1)))


def _judge(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str | None:
    if not got.is_floating_point():
        return None if torch.equal(got, eager) else "the candidate's integers differ from eager's"
    finite = exact.isfinite() & eager.isfinite()
    if not torch.equal(got.isfinite() & exact.isfinite(), finite):
        return "the candidate is finite where eager is not, or the reverse"
    scale = _rms(exact[finite])
    error, allowed = _rms((got - exact)[finite]), 2 * _rms((eager - exact)[finite])
    allowed += EPS_ALLOWED * torch.finfo(got.dtype).eps * scale
    if error <= allowed:
        return None
    return f"the candidate's rms error is {error:.2e}, above the {allowed:.2e} that eager allows"


def _rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


def _seeded(module: nn.Module, inputs: Inputs, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return forward(module, inputs)


def _kinds(values: list[torch.Tensor]) -> str:
    kinds = [f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in values]
    return ", ".join(kinds) or "nothing"
