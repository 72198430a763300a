"""kernelwright turns a PyTorch model into a faster drop-in one that computes the same function.

The public API is these six functions, each of which imports what it needs when it is called, and
the errors that they raise: `except kernelwright.UnsupportedError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack, cast

from kernelwright.errors import (
    BuildError,
    InputError,
    InternalError,
    KernelwrightError,
    NotCertifiedError,
    UnsupportedError,
    VerificationError,
)
from kernelwright.version import __version__

if TYPE_CHECKING:
    from torch import nn

    from kernelwright.bench.timings import Timings
    from kernelwright.compiled import Compiled
    from kernelwright.options import BenchOptions, VerifyOptions
    from kernelwright.plan.policy import Policy
    from kernelwright.problem import Problem
    from kernelwright.verify.certificate import Certificate

__all__ = [
    "BuildError",
    "InputError",
    "InternalError",
    "KernelwrightError",
    "NotCertifiedError",
    "UnsupportedError",
    "VerificationError",
    "__version__",
    "assert_certified",
    "bench",
    "explain",
    "optimize",
    "save",
    "verify",
]


def optimize(
    model: nn.Module | str | Path,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    tune: bool = False,
    verify: bool = False,
    train: bool | None = None,
    progress: Callable[[str, str], None] | None = None,
    policy: Policy | None = None,
) -> nn.Module:
    """The fused drop-in for a live module (with example inputs) or for the Model of a file.

    The result shares the tensors of the original, and nothing else. With `verify` it is certified
    first, and a VerificationError that holds the certificate is raised if that fails. `tune`
    measures a few tiles of each generated product first, on the inputs that are given. With `train`
    the backward is generated too: by default for a live module in train mode that gradients are
    asked for. A `policy` may ask for more than what is fastest (see kernelwright.plan.Policy).
    """
    compiled = explain(
        model,
        example_inputs,
        example_kwargs,
        device=device,
        precision=precision,
        tune=tune,
        train=train,
        progress=progress,
        policy=policy,
    )
    new = compiled.instantiate()
    if verify:
        from dataclasses import replace

        from torch import nn

        from kernelwright.verify.live import verify_compiled

        # What was given can be pickled for that, where its class is one that we have written.
        given = model if isinstance(model, nn.Module) else compiled.problem.module
        certificate = verify_compiled(replace(compiled.problem, module=given), new, progress)
        if not certificate.passed:
            raise VerificationError(f"The optimized module: {certificate.verdict}.", certificate)
    return new


def explain(
    model: nn.Module | str | Path,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    tune: bool = False,
    train: bool | None = None,
    progress: Callable[[str, str], None] | None = None,
    policy: Policy | None = None,
) -> Compiled:
    """Compile and return everything decided on the way; printing the result shows the plan."""
    from dataclasses import replace

    from kernelwright.graphs import written
    from kernelwright.pipeline import compile_problem
    from kernelwright.plan.policy import WHERE_IT_PAYS

    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    if train is None:
        train = problem.asks_for_gradients if policy is None else policy.backward
    policy = replace(policy or WHERE_IT_PAYS, backward=train)
    problem = replace(problem, module=written(problem.module))
    if tune:
        from kernelwright.tune import compile_tuned

        return compile_tuned(problem, progress, policy)
    return compile_problem(problem, progress, policy=policy)


def verify(
    model: nn.Module | str | Path,
    candidate: nn.Module | str | Path,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    **options: Unpack[VerifyOptions],
) -> Certificate:
    """Check that a candidate computes the same function as a model.

    Two files: `ModelNew` of one and `Model` of the other. Or a live module with example inputs, and
    another module or the file of a ModelNew, which then takes over the module's state. Further
    options are time_limit, progress, quick, thorough, only and seed, and for files training (see
    kernelwright.verify).
    """
    from kernelwright.verify.live import verify_live
    from kernelwright.verify.session import verify as verify_files

    if isinstance(model, str | Path):
        files = model, _file(candidate, example_inputs, example_kwargs)
        return verify_files(*files, device, precision, **options)
    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    return verify_live(problem, _candidate(candidate), **options)


def assert_certified(
    model_new: nn.Module | str | Path,
    model: nn.Module | str | Path,
    inputs: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    **options: Unpack[VerifyOptions],
) -> Certificate:
    """For test suites: `verify`, and a NotCertifiedError that names what failed unless it passes.

    The arguments are those of `verify`, with the candidate first, as in `assert_close(actual,
    expected)`. The certificate comes back; under pytest, `--kernelwright-report FILE` keeps it.
    """
    from kernelwright.assertions import judged

    return judged(
        verify(model, model_new, inputs, kwargs, device=device, precision=precision, **options)
    )


def bench(
    model: nn.Module | str | Path,
    candidate: nn.Module | str | Path,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    train: bool = False,
    **options: Unpack[BenchOptions],
) -> Timings:
    """Time a candidate against a model in eager mode and under torch.compile.

    Files or live modules, as for `verify`. With `train` a training step (forward, loss, backward)
    is timed besides. Further options are batch, baselines, seconds, progress and verify_after, and
    for files training (see kernelwright.bench).
    """
    from kernelwright.bench.live import bench_live
    from kernelwright.bench.runner import bench as bench_files

    if isinstance(model, str | Path):
        files = model, _file(candidate, example_inputs, example_kwargs)
        return bench_files(*files, device, precision, train=train, **options)
    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    if options.pop("training", None) is not None:
        raise InputError("A live module is timed in its own mode; call .train() or .eval() on it.")
    return bench_live(problem, _candidate(candidate), train=train, **cast("Any", options))


def _problem(
    model: nn.Module | str | Path,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None,
    device: str,
    precision: str,
) -> Problem:
    from kernelwright.problem import load_problem, problem_from_module

    if isinstance(model, str | Path):
        if example_inputs is not None or example_kwargs is not None:
            raise InputError(
                "The example inputs of a model file are what its get_inputs() returns."
            )
        return load_problem(model, device, precision)
    if device != "auto":
        raise InputError("A live module is compiled for the device it is on; move it with .to().")
    return problem_from_module(model, example_inputs, precision, example_kwargs)


def _file(candidate: nn.Module | str | Path, *examples: object) -> str | Path:
    if not isinstance(candidate, str | Path) or any(e is not None for e in examples):
        raise InputError(
            "A model file is compared with a candidate's file, on the inputs of its get_inputs()."
        )
    return candidate


def _candidate(candidate: nn.Module | str | Path) -> nn.Module | Path:
    return Path(candidate) if isinstance(candidate, str | Path) else candidate


def save(module: nn.Module, path: str | Path) -> Path:
    """Write the emitted file of a module that `optimize` returned; the path comes back."""
    from kernelwright.live import save as run

    return run(module, path)


class _Package(ModuleType):
    """Keeps `bench` and `verify` functions here, although subpackages bear the same names.

    Importing a submodule assigns it to its parent's attribute, which would hide the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
