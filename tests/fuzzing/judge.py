"""Is a result what a random model computes? Against float64, and no stricter than rounding is.

In: a Recipe, and what somebody computed for it. The tolerance is twice eager's own error, or what
rounding the result of every single step up or down at random does to the model in float64, several
times over: a model that is badly conditioned may be off, one that is not may not. A truth value or
an integer may be another one if as much noise as a number may be off by makes it another one.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fuzzing.recipe import Noise, Recipe
from fuzzing.writer import randomise

DRAWS, MORE_DRAWS = 3, 24
TIMES_EAGER, TIMES_NOISE, FLOOR = 2.0, 8.0, 8.0


class Wrong(AssertionError):
    """The result is not the model's."""


def module_of(recipe: Recipe) -> nn.Module:
    """The model with random parameters, in its own type."""
    scope: dict[str, Any] = {}
    exec(recipe.text, scope)
    return randomised(scope["Model"]())


def randomised(module: nn.Module) -> nn.Module:
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    randomise(module)
    return module.to(dtype)


def widened(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, value)


@dataclass(frozen=True)
class Truth:
    """What a model computes in float64: its outputs and state, and the same with noise.

    `louder` draws it again and again, with as much noise as the tolerance of a number is.
    """

    exact: Any
    noisy: tuple[Any, ...]
    louder: Callable[[], Iterator[Any]]

    @staticmethod
    def drawn(run: Callable[[Noise | None], Any], noise: float) -> Truth:
        """`run` computes all of it, with noise or without."""

        def draws(seeds: range, by: float) -> Iterator[Any]:
            for seed in seeds:
                with contextlib.suppress(RuntimeError, ValueError):  # a probability above one
                    yield run(Noise(seed, by))

        more = range(DRAWS, DRAWS + MORE_DRAWS)
        noisy = tuple(draws(range(DRAWS), noise))
        return Truth(run(None), noisy, lambda: draws(more, TIMES_NOISE * noise))

    @staticmethod
    def of(recipe: Recipe, module: nn.Module, inputs: tuple[Any, ...], noise: float) -> Truth:
        wide = copy.deepcopy(module).double()
        given = widened(inputs)

        def once(by: Noise | None) -> Any:
            own = copy.deepcopy(wide)
            made = by.on(given) if by is not None else given
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = recipe.run(own, made, by)
            return outputs, dict(own.named_buffers())

        return Truth.drawn(once, noise)


def check(what: str, ours: Any, truth: Truth, eager: Any = None, eps: float = 0.0) -> None:
    """`eager` is what torch made in the model's own type, or None; `eps` that type's."""
    flat, structure = pytree.tree_flatten(ours)
    exact, expected = pytree.tree_flatten(truth.exact)
    if structure != expected:
        raise Wrong(f"{what}: {structure} instead of {expected}")
    noisy = [pytree.tree_leaves(n) for n in truth.noisy]
    theirs = pytree.tree_leaves(eager) if eager is not None else [None] * len(flat)
    for i, (a, b, e) in enumerate(zip(flat, exact, theirs, strict=True)):
        if isinstance(a, Tensor):
            louder = (pytree.tree_leaves(n)[i] for n in truth.louder())
            _one(f"{what}, result {i}", a, b, e, [n[i] for n in noisy], louder, eps)
        elif a != b:
            raise Wrong(f"{what}, result {i}: {a!r} instead of {b!r}")


def _one(
    what: str,
    ours: Tensor,
    exact: Tensor,
    eager: Tensor | None,
    noisy: list[Tensor],
    louder: Iterator[Tensor],
    eps: float,
) -> None:
    if ours.shape != exact.shape or (eager is not None and ours.dtype != eager.dtype):
        wanted = exact.shape if eager is None else (exact.shape, eager.dtype)
        raise Wrong(f"{what}: {tuple(ours.shape)} {ours.dtype} instead of {wanted}")
    ours, exact = ours.detach().cpu(), exact.cpu()
    eager = eager.detach().cpu() if eager is not None else None
    noisy = [n.cpu() for n in noisy]
    if not exact.is_floating_point():
        _discrete(what, ours, exact, eager, chain(noisy, louder))
        return
    _special(what, ours, exact, eager)
    everyone = [x.double() for x in (ours, exact, *noisy, *([] if eager is None else [eager]))]
    keep = torch.stack([x.isfinite() for x in everyone]).all(0)
    a, b, *others = (x[keep] for x in everyone)
    if not a.numel():
        return
    draws, theirs = others[: len(noisy)], others[len(noisy) :]
    for name, of in (("max", _largest), ("rms", _mean)):
        error = of(a - b)
        bound = TIMES_NOISE * max((of(n - b) for n in draws), default=0.0)
        bound += TIMES_EAGER * sum(of(t - b) for t in theirs)
        bound += (FLOOR * eps or 1e-11) * of(b) + 1e-40
        if not error <= bound:
            at = int((a - b).abs().argmax())
            raise Wrong(
                f"{what}: {name} error {error:.3g}, allowed {bound:.3g}; "
                f"{float(a[at]):.8g} instead of {float(b[at]):.8g}"
            )


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _mean(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _special(what: str, ours: Tensor, exact: Tensor, eager: Tensor | None) -> None:
    """NaN and infinities stand where eager or float64 has them."""

    def kind(x: Tensor) -> Tensor:
        return x.isnan().int() + 2 * x.isposinf().int() + 3 * x.isneginf().int()

    wrong = kind(ours) != kind(exact.to(ours.dtype))
    if eager is not None:
        wrong &= kind(ours) != kind(eager)
    if bool(wrong.any()):
        at = int(wrong.reshape(-1).int().argmax())
        raise Wrong(f"{what}: {ours.reshape(-1)[at]} instead of {exact.reshape(-1)[at]}")


def _discrete(
    what: str, ours: Tensor, exact: Tensor, eager: Tensor | None, noisy: Iterable[Tensor]
) -> None:
    """Integers and truth values are equal, but where rounding decides."""
    wrong = ours != exact
    if eager is not None:
        wrong &= ours != eager
    draws = iter(noisy)
    while bool(wrong.any()):
        draw = next(draws, None)
        if draw is None:
            at = int(wrong.reshape(-1).int().argmax())
            raise Wrong(f"{what}: {ours.reshape(-1)[at]} instead of {exact.reshape(-1)[at]}")
        wrong &= draw.cpu() == exact
