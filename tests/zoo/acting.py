"""How an action on a compiled module is judged: by eager, to which the same was done.

`compiled` gives a module and its drop-in with equal parameters of their own. `agree` compares both
at two batch sizes, without and with gradients, and says where the result may come from: the kernels
(RUNS), or either the kernels or the original forward, counted and warned about once (EITHER).
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from alike import tensors
from checking import GRADIENTS, check_close
from torch import Tensor, nn

import kernelwright
from kernelwright.plan import ALWAYS
from zoo.checks import (
    call,
    copied,
    fallbacks,
    launches,
    randomise,
    recorded,
    widened,
    widened_module,
)

RUNS, EITHER = "runs", "either"
SAYS = "runs the original forward"
Make = Callable[[int], tuple[Any, ...]]


def rows(*shape: int) -> Make:
    """Normal inputs of batch x shape, the same ones for the same batch."""

    def make(n: int) -> tuple[Tensor]:
        return (torch.randn(n, *shape, generator=torch.Generator().manual_seed(n + 1)),)

    return make


def prepared(module: nn.Module) -> nn.Module:
    randomise(module)
    return module


def compiled(
    module: nn.Module,
    *example: Any,
    change: Callable[[nn.Module], Any] | None = None,
    **named: Any,
) -> tuple[nn.Module, nn.Module]:
    """The drop-in of a module, and an independent eager twin of it; both changed before."""
    twin = copy.deepcopy(prepared(module))
    if change is not None:
        change(module)
        change(twin)
    # What the kernels do not cover is left to the original here: the guards are what is tested.
    return kernelwright.optimize(module, example, named or None, policy=ALWAYS, kinds="given"), twin


@contextlib.contextmanager
def watched(fused: nn.Module, expected: str = RUNS) -> Iterator[None]:
    """Kernels ran without a fallback; or (EITHER) what fell back was counted and said once."""
    before = fallbacks(fused)
    with warnings.catch_warnings(record=True) as caught, launches(fused) as names:
        warnings.simplefilter("always")
        yield
    causes = fallbacks(fused) - before
    said = [w for w in caught if SAYS in str(w.message)]
    new = [cause for cause in causes if not before[cause]]
    if expected == RUNS:
        assert not causes, f"fell back: {dict(causes)}"
        assert names, "no kernel was launched"
    else:
        assert names or causes, "neither a kernel nor a counted fallback"
    assert len(said) == len(new), f"{len(said)} warnings for the new causes {new}"


def agree(
    fused: nn.Module,
    eager: nn.Module,
    make: Make,
    expected: str = RUNS,
    batches: tuple[int, ...] = (4, 7),
    **named: Any,
) -> None:
    """Outputs, strides and gradients are eager's at every batch size."""
    for n in batches:
        given = make(n), named
        oracle = widened_module(eager)
        with torch.no_grad():
            with watched(fused, expected):
                ours = call(fused, copied(given))
            theirs = call(eager, copied(given))
            exact = call(oracle, widened(copied(given)))
        check_close(f"outputs at batch {n}", ours, theirs, exact)
        with watched(fused, expected):
            ours, found = recorded(fused, copied(given, True))
        theirs, wanted = recorded(eager, copied(given, True))
        exact, right = recorded(oracle, copied(widened(given), True))
        check_close(f"outputs with gradients at batch {n}", ours, theirs, exact)
        check_close("gradients", found, wanted, right, GRADIENTS)


def same(ours: Any, theirs: Any) -> None:
    """Equal within rounding, without an oracle, for what is not a plain call."""
    for a, b in zip(tensors(ours), tensors(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def both(fused: nn.Module, eager: nn.Module, action: Callable[[nn.Module], Any]) -> None:
    """Do the same to both."""
    action(fused)
    action(eager)
