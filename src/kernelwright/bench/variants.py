"""The ways to run a model that bench compares, each ready to be called on any set of inputs.

In: the eager module, the candidate module and the sets of inputs. Out: a Variant with one callable
per set, or a Timing that says why there is none. A baseline that cannot be made is a row with a
note; only a candidate that fails ends the run.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.bench.context import matmul_precision
from kernelwright.bench.inputs import InputSets
from kernelwright.bench.timings import TF32, Timing
from kernelwright.errors import BuildError, InputError, KernelwrightError, VerificationError
from kernelwright.failures import build_failure
from kernelwright.problem import Problem
from kernelwright.structures import in_classes_of
from kernelwright.verify.candidate import candidate_class, construct
from kernelwright.verify.inputs import Inputs, forward

Call = Callable[[], Any]


@dataclass(frozen=True)
class Variant:
    """A name and one callable per set of inputs."""

    name: str
    calls: tuple[Call, ...]


def load_candidate(problem: Problem, path: Path) -> nn.Module:
    """The file's ModelNew with the weights, the device and the mode of the model."""
    torch.manual_seed(0)
    args, kwargs = copy.deepcopy((problem.init_args, problem.init_kwargs))
    candidate = construct(candidate_class(path), args, path, kwargs).to(problem.device)
    try:
        candidate.load_state_dict(problem.module.state_dict(), strict=True)
    except RuntimeError as error:
        raise InputError(
            f"ModelNew of {path} does not take the model's weights: {error}"
        ) from error
    return candidate.train(problem.training)


def direct(name: str, module: Callable[..., Any], sets: InputSets) -> Variant:
    return Variant(name, tuple(functools.partial(module, *i.args, **i.kwargs) for i in sets))


def prepare_candidate(name: str, module: nn.Module, sets: InputSets, warmups: int) -> Variant:
    """Warm up; a candidate that raises is a failed one."""
    own = [Inputs(*in_classes_of(module, (i.args, i.kwargs))) for i in sets]
    variant = direct(name, module, own)
    try:
        warm(variant, warmups)
    except Exception as error:
        raise candidate_failure(error) from error
    return variant


def candidate_failure(error: Exception) -> KernelwrightError:
    if isinstance(error, KernelwrightError):
        return error
    if (reason := build_failure(error)) is not None:
        return BuildError(f"The candidate could not be built: {reason}")
    kind = type(error).__name__
    return VerificationError(f"The candidate's forward raised {kind}: {brief(error)}.")


def prepare_compiled(
    name: str, mode: str, module: nn.Module, sets: InputSets, warmups: int
) -> Variant | Timing:
    """torch.compile in a mode, compiled by its warm-up."""
    try:
        variant = direct(name, torch.compile(module, mode=mode, dynamic=False), sets)
        warm(variant, warmups)
    except Exception as error:
        return Timing(name, note=f"torch.compile failed: {brief(error, 90)}")
    return variant


def is_tf32(name: str) -> bool:
    return name.endswith(TF32)


def in_tf32(made: Variant | Timing, name: str) -> Variant | Timing:
    """The same calls while torch's float32 products may be TF32."""

    def switched(call: Call) -> Any:
        with matmul_precision("high"):
            return call()

    if isinstance(made, Timing):
        return replace(made, name=name)
    return Variant(name, tuple(functools.partial(switched, call) for call in made.calls))


def prepare_graph(name: str, module: nn.Module, sets: InputSets) -> Variant | Timing:
    """A captured CUDA graph per set of inputs, so that a replay copies nothing."""
    try:
        graphs = [_capture(module, inputs) for inputs in sets]
        variant = Variant(name, tuple(graph.replay for graph in graphs))
        warm(variant, 2)
    except Exception as error:
        return Timing(name, note=f"graph capture failed: {brief(error, 90)}")
    return variant


def _capture(module: nn.Module, inputs: Inputs) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        forward(module, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(module, inputs)
    return graph


def warm(variant: Variant, times: int) -> None:
    """Call on two of the sets in turn, until whatever is built or recorded lazily is there."""
    for k in range(times):
        variant.calls[k % 2]()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def brief(error: BaseException, limit: int = 200) -> str:
    """The first line of an exception's message, short enough for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return inspect.cleandoc(text).rstrip(".")[:limit]
