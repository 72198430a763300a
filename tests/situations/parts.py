"""What the situations are made of: few layers of few sizes, whose kernels are built once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDE = 8
Compile = Callable[..., Any]


def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A product, and two kernels' worth behind it."""
    return F.layer_norm(F.gelu(x @ w + b), (WIDE,))


def tail(x: Tensor) -> Tensor:
    return F.softmax(x * 2.0 + 1.0, -1)


class Block(nn.Module):
    def __init__(self, drop: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDE, WIDE)
        self.norm = nn.BatchNorm1d(WIDE) if norm else nn.LayerNorm(WIDE)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(F.gelu(self.lin(x))))


def rows(count: int = 4, grad: bool = False, **options: Any) -> Tensor:
    return torch.randn(count, WIDE, **options).requires_grad_(grad)


def weights(grad: bool = False) -> tuple[Tensor, Tensor]:
    return (
        (torch.randn(WIDE, WIDE) / WIDE).requires_grad_(grad),
        torch.randn(WIDE).requires_grad_(grad),
    )


def grads(*owners: Any) -> list[Any]:
    """Of tensors, and of the parameters of modules."""
    found: list[Any] = []
    for owner in owners:
        holding = owner.parameters() if isinstance(owner, nn.Module) else [owner]
        found += [x.grad for x in holding]
    return found


@dataclass(frozen=True)
class Situation:
    """`run` gives all there is to see; `compiles` says whether kernels run at all in it.

    `because` is a part of the one reason for which a graph of it runs as in eager.
    """

    name: str
    run: Callable[[Compile], Any]
    compiles: bool
    because: str | None


SITUATIONS: dict[str, Situation] = {}


def situation(compiles: bool = True, because: str | None = None) -> Callable[..., Any]:
    def note(run: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
        name = run.__name__
        assert name not in SITUATIONS, name
        SITUATIONS[name] = Situation(name, run, compiles, because)
        return run

    return note
