"""A candidate file becomes a module, or an error that says whose fault it is.

In: a path. Out: an instance of its ModelNew; a BuildError when the compiler refused its extension,
an InputError for everything else. `fallbacks_of` reads how often one ran the original forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from kernelwright.errors import BuildError, InputError
from kernelwright.failures import build_failure
from kernelwright.loading import load_source, read_source


def candidate_class(path: Path, text: str | None = None) -> type[nn.Module]:
    """ModelNew of the candidate file, which is run for it, or of a text that stands for it."""
    try:
        module = load_source(path, text)
    except InputError as error:
        if error.__cause__ is None:
            raise
        reason = build_failure(error.__cause__, path, text or read_source(path))
        if reason is None:
            raise
        raise BuildError(f"{path} could not be built: {reason}") from error
    chosen = getattr(module, "ModelNew", None)
    if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
        raise InputError(f"{path} defines no `class ModelNew(nn.Module)`; name the candidate so.")
    return chosen


def construct(
    chosen: type[nn.Module],
    arguments: Sequence[Any],
    path: Path,
    keywords: Mapping[str, Any] | None = None,
) -> nn.Module:
    """An instance of ModelNew, built with the arguments of Model."""
    try:
        return chosen(*arguments, **(keywords or {}))
    except Exception as error:
        if (reason := build_failure(error, path, read_source(path))) is not None:
            raise BuildError(f"{path} could not be built: {reason}") from error
        kind = type(error).__name__
        raise InputError(
            f"ModelNew(*get_init_inputs()) in {path} raised {kind}: {error}. "
            "ModelNew must take the arguments of Model."
        ) from error


def fallbacks_of(module: nn.Module) -> Counter[str] | None:
    """How often the module ran the original forward, by cause; None when it does not count.

    An emitted ModelNew counts for each instance; any other may have a Counter `fallbacks`.
    """
    places = (module.__dict__.get("_kernelwright"), module)
    counters = (getattr(place, "fallbacks", None) for place in places)
    counted = next((counter for counter in counters if isinstance(counter, Mapping)), None)
    return None if counted is None else Counter({str(k): int(v) for k, v in counted.items()})
