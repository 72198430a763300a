"""A situation is run with and without torch.compile, and what there is to see is compared."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import alike
import torch
from torch import Tensor

import kernelwright
from kernelwright.backends.torch_compile import Served

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def seen(run: Callable[[Callable[..., Any]], Any], compile_: Callable[..., Any]) -> Any:
    """All that a situation gives, and the state in which it leaves the generator."""
    torch.manual_seed(0)
    return run(compile_), torch.get_rng_state()


def as_it_is(function: Any = None, **options: Any) -> Any:
    return function if function is not None else as_it_is


class Compiling:
    """torch.compile by our backend, which keeps every graph that it served."""

    def __init__(self, **options: Any) -> None:
        self.served: list[Served] = []
        self.options = options

    def __call__(self, function: Any = None, **options: Any) -> Any:
        def backend(*args: Any, **kwargs: Any) -> Served:
            served = kernelwright.backend(*args, **kwargs)
            assert isinstance(served, Served)
            self.served.append(served)
            return served

        compile_ = functools.partial(torch.compile, backend=backend, **{**self.options, **options})
        return compile_(function) if function is not None else compile_

    @property
    def reasons(self) -> list[str]:
        return [served.why for served in self.served if served.why is not None]


def watched(run: Callable[..., Any], **options: Any) -> tuple[Any, Any, Compiling, list[str]]:
    """Ours, eager's, what was compiled, and the warnings."""
    theirs = seen(run, as_it_is)
    torch._dynamo.reset()
    compiling = Compiling(**options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = seen(run, compiling)
    torch._dynamo.reset()
    return ours, theirs, compiling, [str(w.message) for w in caught]


def difference(ours: Any, theirs: Any) -> str | None:
    """The first thing that is not as in eager, values included."""
    found = alike.difference(ours, theirs)
    if found is not None:
        return found
    if alike.aliases(ours, ()) != alike.aliases(theirs, ()):
        return "other results share memory"
    for place, (mine, other) in enumerate(
        zip(alike.tensors(ours), alike.tensors(theirs), strict=True)
    ):
        if not _close(mine, other):
            return f"tensor {place}: {mine} instead of {other}"
    return None


def _close(mine: Tensor, other: Tensor) -> bool:
    if mine.layout is not torch.strided:
        mine, other = mine.to_dense(), other.to_dense()
    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, other)
    bound = TOLERANCES.get(mine.dtype, 2e-5)
    return torch.allclose(mine, other, rtol=bound, atol=bound, equal_nan=True)
