"""Arguments reach the original as the caller gave them, however its forward takes them."""

from __future__ import annotations

import enum
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import difference, tensors
from torch import Tensor, nn
from zoo.acting import RUNS, compiled, watched
from zoo.checks import copied, recorded

import kernelwright

pytestmark = pytest.mark.usefixtures("extensions")


class Mode(enum.Enum):
    ONE = 1
    OTHER = 2


def filling(forward: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators of libraries do: what is not given by name is given by name."""

    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scale") is None:
            kwargs["scale"] = 3.0
        return forward(self, *args, **kwargs)

    return wrapper


def asking(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Shows a signature without wrapping, and does something else for what is given by name."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) * (2 if "y" in kwargs else 5)

    wrapper.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    return wrapper


def with_defaults(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Takes arguments of its own, behind the signature of another."""

    @functools.wraps(forward)
    def wrapper(
        self: Any, x: Any, mode: Any = Mode.ONE, *rest: Any, last: Any = Mode.OTHER, **named: Any
    ) -> Any:
        return forward(self, x, *rest, **named) * (mode.value + last.value)

    return wrapper


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def both(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * 2 + torch.tanh(y)


class Filling(Base):
    @filling
    def forward(self, x: Tensor, y: Tensor, scale: float | None = None) -> Tensor:
        return self.both(x, y) * scale


class Asking(Base):
    @asking
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.both(x, y)


class WithDefaults(Base):
    @with_defaults
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.both(x, y)


class Quiet(Base):
    @torch.no_grad()
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.both(x, y)


class Static(nn.Module):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x) * torch.tanh(y)


class Partial(Base):
    def scaled(self, x: Tensor, y: Tensor, *, by: float) -> Tensor:
        return self.both(x, y) * by

    forward = functools.partialmethod(scaled, by=2.0)  # type: ignore[assignment]


class Mixed(Base):
    def forward(self, x: Tensor, /, *ys: Tensor, mode: Mode = Mode.ONE, **named: Any) -> Tensor:
        return self.both(x, ys[0]) * named["z"] * mode.value


class Named(Base):
    """Its result depends on what its class is called."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.both(x, y) * len(type(self).__name__)


def t(rows: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows + seed))


Call = tuple[tuple[Any, ...], dict[str, Any]]
X, Y = t(), t(seed=9)
FORMS: list[Call] = [
    ((X, Y), {}),
    ((X,), {"y": Y}),
    ((), {"x": X, "y": Y}),
    ((t(5), t(5, 9)), {}),
    ((X, Y.double()), {}),
    ((X,), {}),
]
# A class, the form of its example, and further calls.
CASES: dict[str, tuple[type[nn.Module], Call, list[Call]]] = {
    "filled in": (Filling, ((X, Y), {}), [((X, Y), {"scale": 2.0}), ((X, Y), {"scale": None})]),
    "filled in, by name": (Filling, ((X,), {"y": Y}), [((X, Y, None), {})]),
    "asked for": (Asking, ((X, Y), {}), []),
    "asked for, by name": (Asking, ((X,), {"y": Y}), []),
    "own defaults": (WithDefaults, ((X,), {"y": Y}), [((X, Mode.OTHER, Y), {})]),
    "without gradients": (Quiet, ((X, Y), {}), []),
    "static": (Static, ((X, Y), {}), []),
    "partial": (Partial, ((X, Y), {}), [((X, Y), {"by": 3.0})]),
    "mixed": (Mixed, ((X, Y), {"z": 2.0}), [((X, Y), {"z": 2.0, "mode": Mode.OTHER})]),
    "named": (Named, ((X, Y), {}), []),
}


def outcome(module: nn.Module, call: Call, gradients: bool) -> Any:
    args, kwargs = copied(call, gradients)
    try:
        if gradients:
            return recorded(module, (args, kwargs))
        with torch.no_grad():
            return module(*args, **kwargs)
    except Exception as error:  # of whatever kind: ours must be of the same
        return type(error).__name__


@pytest.mark.parametrize("case", CASES)
def test_every_form_of_a_call_is_eagers(case: str) -> None:
    kind, (args, kwargs), more = CASES[case]
    fused, eager = compiled(kind(), *args, **kwargs)
    with watched(fused, RUNS):
        outcome(fused, (args, kwargs), gradients=True)
    for call in [(args, kwargs), *FORMS, *more]:
        for gradients in (False, True, True):
            theirs = outcome(eager, call, gradients)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = outcome(fused, call, gradients)
            assert difference(ours, theirs) is None, (call, gradients)
            for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_a_signature_that_is_shown_stays_shown() -> None:
    fused, eager = compiled(Filling(), X, Y)
    assert inspect.signature(fused.forward) == inspect.signature(eager.forward)


class SixGiven(nn.Module):
    def forward(self, g: Tensor, x: Tensor, t: Tensor, h: Tensor, y: Tensor, u: Tensor) -> Any:
        return x * t.sigmoid() + g, (y - u.exp()) * h


def test_one_tensor_in_two_places_of_the_example() -> None:
    """A trace reads both from one of them, so that other calls are not for these kernels."""
    g, x, t, h, y, other = (torch.randn(6, 8) for _ in range(6))
    module = SixGiven()
    fused: Any = kernelwright.optimize(module, (g, x, t, h, y, t), kinds="given")
    for u in (t, other):
        for found, expected in zip(fused(g, x, t, h, y, u), module(g, x, t, h, y, u), strict=True):
            torch.testing.assert_close(found, expected)
    assert fused.fallbacks == {"u and t are not one tensor, as in the example": 1}
