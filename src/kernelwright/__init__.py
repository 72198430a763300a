"""kernelwright turns a PyTorch model into a faster drop-in one that computes the same function.

The public API is these four functions; each imports what it needs when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from kernelwright.bench import Timings
    from kernelwright.pipeline import Compiled
    from kernelwright.verify import Certificate

__all__ = ["bench", "explain", "optimize", "save", "verify"]
__version__ = "0.1.0"


def optimize(
    model: nn.Module | str | Path,
    example_inputs: Sequence[Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    tune: bool = False,
    progress: Callable[[str, str], None] | None = None,
) -> nn.Module:
    """The fused drop-in for a live module (with example inputs) or for the Model of a file.

    The result shares the parameters of the original. It is compiled, not yet certified: to write a
    file that is verified and timed, use `kernelwright optimize` on the command line.

    `tune` measures a few tiles of each generated product first, on the inputs that are given.
    """
    return explain(
        model, example_inputs, device=device, precision=precision, tune=tune, progress=progress
    ).instantiate()


def explain(
    model: nn.Module | str | Path,
    example_inputs: Sequence[Any] | None = None,
    *,
    device: str = "auto",
    precision: str = "current",
    tune: bool = False,
    progress: Callable[[str, str], None] | None = None,
) -> Compiled:
    """Compile and return everything decided on the way; printing the result shows the plan."""
    from kernelwright.errors import InputError
    from kernelwright.pipeline import compile_problem
    from kernelwright.problem import load_problem, problem_from_module

    if isinstance(model, str | Path):
        problem = load_problem(model, device, precision)
    else:
        if device != "auto":
            raise InputError(
                "A live module is compiled for the device it is on; move it with .to()."
            )
        problem = problem_from_module(model, example_inputs, precision)
    if tune:
        from kernelwright.tune import compile_tuned

        return compile_tuned(problem, progress)
    return compile_problem(problem, progress)


def verify(
    model_path: str | Path, candidate_path: str | Path, device: str = "auto", **options: Any
) -> Certificate:
    """Check that `ModelNew` of one file is the `Model` of another (see kernelwright.verify)."""
    from kernelwright.verify import verify as run

    return run(model_path, candidate_path, device, **options)


def bench(
    model_path: str | Path, candidate_path: str | Path, device: str = "auto", **options: Any
) -> Timings:
    """Time `ModelNew` of one file against the `Model` of another (see kernelwright.bench)."""
    from kernelwright.bench import bench as run

    return run(model_path, candidate_path, device, **options)


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
