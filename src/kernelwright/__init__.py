"""kernelwright turns a PyTorch model into a faster drop-in one that computes the same function.

The public API is these seven functions, each of which imports what it needs when it is called, and
the errors that they raise: `except kernelwright.UnsupportedError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Unpack, cast

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
    from torch import fx, nn
    from torch.export import ExportedProgram

    from kernelwright.bench.timings import Timings
    from kernelwright.compiled import Compiled
    from kernelwright.options import BackendOptions, BenchOptions, VerifyOptions
    from kernelwright.plan.policy import Policy
    from kernelwright.problem import Problem
    from kernelwright.verify.certificate import Certificate

# What may be compiled: a module, a function, a program of torch.export, a scripted module, a path.
Given: TypeAlias = "nn.Module | ExportedProgram | Callable[..., Any] | str | Path"

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
    "backend",
    "bench",
    "explain",
    "optimize",
    "save",
    "verify",
]


def optimize(
    model: Given,
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
    kinds: int | str = "live",
) -> nn.Module:
    """The fused drop-in for a live module (with example inputs) or for the Model of a file.

    In the place of a module there may be a plain function, a program of torch.export (which brings
    its example) or its .pt2 file, and a scripted or traced module whose graph can be had. The
    result shares the tensors of the original, and nothing else. With `verify` it is certified
    first, and a VerificationError that holds the certificate is raised if that fails. `tune`
    measures a few tiles of each generated product first, on the inputs that are given. With `train`
    the backward is generated too: by default for a live module in train mode that gradients are
    asked for. A `policy` may ask for more than what is fastest (see kernelwright.plan.Policy).

    A call that the kernels of the example do not cover (another mode, autocast, arguments that are
    built otherwise, other sizes) gets kernels of its own, a kind: up to 16 of them, or as many as
    `kinds` says. With `kinds="given"` the original runs instead. See kernelwright.kinds.
    """
    from kernelwright.kinds import led, most_of, with_kinds

    most = most_of(kinds)
    given = model, example_inputs, example_kwargs
    problem: Problem | None = None
    try:
        compiled = explain(
            *given,
            device=device,
            precision=precision,
            tune=tune,
            train=train,
            progress=progress,
            policy=policy,
        )
    except UnsupportedError as error:
        if most == 0 or isinstance(model, str | Path):
            raise
        problem = _problem(*given, device, precision)
        new = led(problem, most, policy, error)
    else:
        problem = compiled.problem
        new = with_kinds(compiled.instantiate(), problem, most, policy)
    if verify:
        from dataclasses import replace

        from torch import nn

        from kernelwright.verify.live import verify_compiled

        # What was given can be pickled for that, where its class is one that we have written.
        module = model if isinstance(model, nn.Module) else problem.module
        certificate = verify_compiled(replace(problem, module=module), new, progress)
        if not certificate.passed:
            raise VerificationError(f"The optimized module: {certificate.verdict}.", certificate)
    return new


def explain(
    model: Given,
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

    from kernelwright.calls import check_plain
    from kernelwright.frontend.graphs import written
    from kernelwright.pipeline import compile_problem
    from kernelwright.plan.policy import WHERE_IT_PAYS

    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    if train is None:
        train = problem.asks_for_gradients if policy is None else policy.backward
    policy = replace(policy or WHERE_IT_PAYS, backward=train)
    problem = replace(problem, module=written(problem.module))
    check_plain((problem.inputs, problem.kwargs))
    if tune:
        from kernelwright.tune import compile_tuned

        return compile_tuned(problem, progress, policy)
    return compile_problem(problem, progress, policy=policy)


def verify(
    model: Given,
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
    options are time_limit, progress, quick, thorough, only, seed and level ("function": the highest
    that the certificate has to reach to pass), and for files training (see kernelwright.verify).
    """
    from kernelwright.verify.live import verify_live
    from kernelwright.verify.session import verify as verify_files

    if _is_model_file(model):
        files = model, _file(candidate, example_inputs, example_kwargs)
        return verify_files(*files, device, precision, **options)
    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    return verify_live(problem, _candidate(candidate), **options)


def assert_certified(
    model_new: nn.Module | str | Path,
    model: Given,
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
    model: Given,
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

    if _is_model_file(model):
        files = model, _file(candidate, example_inputs, example_kwargs)
        return bench_files(*files, device, precision, train=train, **options)
    problem = _problem(model, example_inputs, example_kwargs, device, precision)
    if options.pop("training", None) is not None:
        raise InputError("A live module is timed in its own mode; call .train() or .eval() on it.")
    return bench_live(problem, _candidate(candidate), train=train, **cast("Any", options))


def _problem(
    model: Given,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None,
    device: str,
    precision: str,
) -> Problem:
    if _is_model_file(model):
        from kernelwright.problem import load_problem

        if example_inputs is not None or example_kwargs is not None:
            raise InputError(
                "The example inputs of a model file are what its get_inputs() returns."
            )
        return load_problem(model, device, precision)
    if device != "auto":
        raise InputError("A live module is compiled for the device it is on; move it with .to().")
    from kernelwright.frontend.given import as_module
    from kernelwright.problem import problem_from_module

    module, inputs, kwargs = as_module(model, example_inputs, example_kwargs)
    return problem_from_module(module, inputs, precision, kwargs)


def _is_model_file(model: Given) -> TypeGuard[str | Path]:
    """An exported program in a file is loaded, and is a module like any other."""
    return isinstance(model, str | Path) and Path(model).suffix != ".pt2"


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


def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: BackendOptions | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend of `torch.compile(model, backend="kernelwright")`, for those who pass a function.

    Options are target, precision and fallback (see kernelwright.options.BackendOptions).
    """
    from kernelwright.backends.torch_compile import backend as run

    return run(graph_module, example_inputs, options=options, mode=mode)


class _Package(ModuleType):
    """Keeps `bench` and `verify` functions here, although subpackages bear the same names.

    Importing a submodule assigns it to its parent's attribute, which would hide the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
