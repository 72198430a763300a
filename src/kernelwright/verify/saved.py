"""A live module in another process: saved in a folder by the judge, loaded by others.

In: a Problem and a candidate. Out: files that verify takes in the place of a model's and a
candidate's. The one idea: pickle finds classes by name, so the child gets the parent's import path,
and classes of a script or a notebook from the text that an emitted file has of them. Model and
candidate are saved apart, since an optimized module shares the parameters of its original.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.errors import InputError, KernelwrightError
from kernelwright.frontend.graphs import HOME
from kernelwright.live import adopt
from kernelwright.problem import Problem, problem_from_module
from kernelwright.verify.candidate import candidate_class
from kernelwright.verify.inputs import Inputs, map_tensors

SUFFIX = ".pt"
CONTEXT = "context.json"


def save(folder: Path, problem: Problem, candidate: nn.Module | Path) -> tuple[Path, Path]:
    """Write both down; the paths to verify, which are the candidate's own if it is a file."""
    model = folder / f"model{SUFFIX}"
    inputs = map_tensors(torch.Tensor.detach, Inputs(problem.inputs, problem.kwargs))
    context = {"path": sys.path, "homes": _homes(problem), "text": _text(problem)}
    (folder / CONTEXT).write_text(json.dumps(context), encoding="utf-8")
    _pickle((problem.module, tuple(inputs)), problem.module, model)
    if isinstance(candidate, Path):
        return model, candidate
    path = folder / f"candidate{SUFFIX}"
    _pickle((candidate, str(problem.device)), candidate, path)
    return model, path


def _pickle(value: Any, module: nn.Module, path: Path) -> None:
    try:
        torch.save(value, path)
    except Exception as error:
        raise InputError(
            f"This {type(module).__name__} cannot be pickled for the process that checks it "
            f"({type(error).__name__}: {error}); define its classes and hooks at the top of a file."
        ) from error


def _homes(problem: Problem) -> list[str]:
    """The modules of classes that only this process has."""
    homes = {type(m).__module__ for m in problem.module.modules()}
    return sorted(h for h in homes if h == "__main__" or h.startswith(HOME))


def _text(problem: Problem) -> str | None:
    """The text of these classes; None where all can be imported."""
    from kernelwright.emit.original import original_source

    if not _homes(problem):
        return None
    try:
        return original_source(problem)
    except KernelwrightError:
        return None


def loaded(
    model: Path, candidate: Path | None, precision: str, text: str | None
) -> tuple[torch.device, nn.Module, Callable[[], Inputs]]:
    """What `save` wrote down: the original, or the candidate in a process of its own.

    A file's ModelNew takes over a copy of the original's state.
    """
    context = json.loads((model.parent / CONTEXT).read_text(encoding="utf-8"))
    sys.path.extend(entry for entry in context["path"] if entry not in sys.path)
    if context["text"] is not None:
        _define(context["text"], context["homes"])
    if candidate is not None and candidate.suffix == SUFFIX:
        new, device = _unpickle(candidate)
        return torch.device(device), new, lambda: Inputs((), {})
    module, inputs = _unpickle(model)
    problem = problem_from_module(module, inputs[0], precision, inputs[1])
    if candidate is not None:
        module = adopt(candidate_class(candidate, text), module)
    given = Inputs(problem.inputs, problem.kwargs)
    return problem.device, module, lambda: map_tensors(torch.clone, given)


def _define(text: str, homes: list[str]) -> None:
    """Give modules of this process the names that the parent's had."""
    module = types.ModuleType("kernelwright_main")
    sys.modules[module.__name__] = module
    exec(compile(text, "<the classes of __main__>", "exec", dont_inherit=True), module.__dict__)
    for home in homes:
        space = vars(sys.modules.setdefault(home, types.ModuleType(home)))
        space.update({k: v for k, v in vars(module).items() if not k.startswith("__")})


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=False)
    except KernelwrightError:
        raise
    except Exception as error:
        raise InputError(
            f"The module cannot be loaded in another process ({type(error).__name__}: {error}); "
            "define its classes at the top of a file that can be imported."
        ) from error
