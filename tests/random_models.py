"""Random models for the planner: maps, reductions, norms, views, slices, cats, products, residuals.

A seed decides everything. Sizes are small and odd; every value stays finite in float64.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
Step = Callable[[nn.Module, Tensor, list[Tensor]], Tensor]


class RandomModel(nn.Module):
    """Steps applied in order; `kept` holds earlier values for residuals."""

    def __init__(self, steps: list[Step], parts: dict[str, nn.Module | nn.Parameter]) -> None:
        super().__init__()
        self.steps = steps
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for step in self.steps:
            x = step(self, x, kept)
            kept.append(x)
        return x


def random_model(seed: int) -> tuple[RandomModel, Tensor]:
    return _Writer(seed).write()


UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    F.gelu,
    F.silu,
    F.mish,
    F.softplus,
    torch.abs,
    lambda x: x * 0.5 + 1.0,
    lambda x: torch.clamp(x, -1.0, 2.0),
    lambda x: F.leaky_relu(x, 0.1),
    lambda x: x + x,
    lambda x: torch.where(x > 0, x, x * 0.25),
)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.parts: dict[str, nn.Module | nn.Parameter] = {}
        self.steps: list[Step] = []
        self.shapes: list[list[int]] = []

    def write(self) -> tuple[RandomModel, Tensor]:
        rank = self.random.choice([2, 2, 3, 3, 4])
        sizes = [self.random.choice([3, 4, 5, 6, 8, 9, 12]) for _ in range(rank - 1)]
        x = torch.randn(5, *sizes)
        self.shape = list(x.shape)
        self.shapes.append(self.shape)
        for _ in range(self.random.randint(2, 9)):
            choices = [self.unary, self.affine, self.norm, self.reduce, self.view, self.permute]
            choices += [self.residual, self.softmax, self.group, self.linear, self.centre]
            choices += [self.slice, self.select, self.gate, self.cat, self.stack]
            self.random.choice(choices)()
        return RandomModel(self.steps, self.parts), x

    def add(self, step: Step, shape: list[int]) -> None:
        self.steps.append(step)
        self.shape = list(shape)
        self.shapes.append(self.shape)

    def part(self, value: nn.Module | nn.Parameter) -> str:
        name = f"part{len(self.parts)}"
        self.parts[name] = value
        for p in value.parameters() if isinstance(value, nn.Module) else ():
            nn.init.normal_(p, std=0.7)
        return name

    def axes(self, fewest: int = 1) -> list[int]:
        """A random set of axes other than the batch."""
        rank = len(self.shape)
        return sorted(self.random.sample(range(1, rank), self.random.randint(fewest, rank - 1)))

    def unary(self) -> None:
        function = self.random.choice(UNARY)
        self.add(lambda m, x, kept: function(x), self.shape)

    def affine(self) -> None:
        tail = self.shape[self.random.randint(1, len(self.shape)) :]
        shape = [s if self.random.random() < 0.7 else 1 for s in tail]
        name = self.part(nn.Parameter(torch.randn(shape)))
        multiply = self.random.random() < 0.5
        self.add(
            lambda m, x, kept: x * getattr(m, name) if multiply else x + getattr(m, name),
            self.shape,
        )

    def norm(self) -> None:
        if len(self.shape) < 2:
            return
        name = self.part(nn.LayerNorm(self.shape[self.random.randint(1, len(self.shape) - 1) :]))
        self.add(lambda m, x, kept: getattr(m, name)(x), self.shape)

    def group(self) -> None:
        if len(self.shape) < 2:
            return
        channels = self.shape[1]
        groups = self.random.choice([g for g in range(1, channels + 1) if channels % g == 0])
        if channels // groups == 1 and all(s == 1 for s in self.shape[2:]):
            return
        name = self.part(nn.GroupNorm(groups, channels))
        self.add(lambda m, x, kept: getattr(m, name)(x), self.shape)

    def softmax(self) -> None:
        if len(self.shape) < 2:
            return
        axis = self.random.choice(range(1, len(self.shape)))
        function = self.random.choice([torch.softmax, torch.log_softmax])
        self.add(lambda m, x, kept: function(x, axis), self.shape)

    def reduce(self) -> None:
        if len(self.shape) < 2:
            return
        axes, keepdim = self.axes(), self.random.random() < 0.6
        function = self.random.choice(
            [torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp]
        )
        shape = [
            1 if i in axes else s for i, s in enumerate(self.shape) if keepdim or i not in axes
        ]
        self.add(lambda m, x, kept: function(x, dim=axes, keepdim=keepdim), shape)

    def centre(self) -> None:
        if len(self.shape) < 2:
            return
        axes = self.axes()
        self.add(lambda m, x, kept: x - x.mean(dim=axes, keepdim=True), self.shape)

    def view(self) -> None:
        if len(self.shape) < 2:
            return
        rest = self.shape[1:]
        at = self.random.randrange(max(1, len(rest) - 1))
        choice = self.random.random() if len(rest) > 1 else 1.0
        if choice < 0.4:
            shape = [*rest[:at], rest[at] * rest[at + 1], *rest[at + 2 :]]
        elif choice < 0.6:  # two axes cut anew, where old and new may have no common factors
            both = rest[at] * rest[at + 1]
            factor = self.random.choice([d for d in range(1, both + 1) if both % d == 0])
            shape = [*rest[:at], both // factor, factor, *rest[at + 2 :]]
        else:
            at = self.random.randrange(len(rest))
            factor = self.random.choice([d for d in range(1, rest[at] + 1) if rest[at] % d == 0])
            shape = [*rest[:at], rest[at] // factor, factor, *rest[at + 1 :]]
        if len(shape) <= 4:
            self.add(lambda m, x, kept: x.reshape(-1, *shape), [self.shape[0], *shape])

    def permute(self) -> None:
        if len(self.shape) < 3:
            return
        order = [0, *self.random.sample(range(1, len(self.shape)), len(self.shape) - 1)]
        self.add(lambda m, x, kept: x.permute(order), [self.shape[i] for i in order])

    def residual(self) -> None:
        """An earlier value that broadcasts to this one, or to which this one broadcasts."""
        fitting = []
        for i, other in enumerate(self.shapes):
            if len(other) == len(self.shape) and all(
                a == b or 1 in (a, b) for a, b in zip(other, self.shape, strict=True)
            ):
                fitting.append(i)
        i = self.random.choice(fitting)
        shape = [max(a, b) for a, b in zip(self.shapes[i], self.shape, strict=True)]
        multiply = self.random.random() < 0.3
        self.add(lambda m, x, kept: x * kept[i] if multiply else x + kept[i], shape)

    def linear(self) -> None:
        if len(self.shape) < 2 or self.shape[-1] == 1:
            return
        width = self.random.choice([4, 6, 7, 8])
        name = self.part(nn.Linear(self.shape[-1], width, bias=self.random.random() < 0.7))
        self.add(lambda m, x, kept: getattr(m, name)(x), [*self.shape[:-1], width])

    def slice(self) -> None:
        axis = self.random.randrange(1, len(self.shape)) if len(self.shape) > 1 else 0
        if axis == 0 or self.shape[axis] < 3:
            return
        start, step = self.random.randrange(self.shape[axis] - 1), self.random.choice([1, 1, 2, 3])
        stop = self.random.randint(start + 1, self.shape[axis])
        index = (*(slice(None) for _ in range(axis)), slice(start, stop, step))
        size = len(range(start, stop, step))
        self.add(lambda m, x, kept: x[index], [*self.shape[:axis], size, *self.shape[axis + 1 :]])

    def select(self) -> None:
        if len(self.shape) < 3:
            return
        axis = self.random.randrange(1, len(self.shape))
        place = self.random.randrange(-self.shape[axis], self.shape[axis])
        shape = [*self.shape[:axis], *self.shape[axis + 1 :]]
        self.add(lambda m, x, kept: x.select(axis, place), shape)

    def gate(self) -> None:
        """Two halves of an axis, one of which gates the other."""
        even = [i for i, s in enumerate(self.shape) if i and s % 2 == 0]
        if not even:
            return
        axis = self.random.choice(even)

        def halves(m: nn.Module, x: Tensor, kept: list[Tensor]) -> Tensor:
            first, second = x.chunk(2, axis)
            return first * torch.sigmoid(second)

        shape = [*self.shape[:axis], self.shape[axis] // 2, *self.shape[axis + 1 :]]
        self.add(halves, shape)

    def cat(self) -> None:
        """An earlier value behind this one, or in front of it, along an axis where they differ."""
        fitting = [
            (i, axis)
            for i, other in enumerate(self.shapes)
            for axis in range(1, len(self.shape))
            if len(other) == len(self.shape)
            and [*other[:axis], *other[axis + 1 :]] == [*self.shape[:axis], *self.shape[axis + 1 :]]
            and other[axis] + self.shape[axis] <= 24
        ]
        if not fitting:
            return
        i, axis = self.random.choice(fitting)
        first = self.random.random() < 0.5
        total = self.shape[axis] + self.shapes[i][axis]
        shape = [*self.shape[:axis], total, *self.shape[axis + 1 :]]
        self.add(
            lambda m, x, kept: torch.cat([kept[i], x] if first else [x, kept[i]], dim=axis), shape
        )

    def stack(self) -> None:
        if len(self.shape) > 3:
            return
        axis = self.random.randint(1, len(self.shape))
        function = self.random.choice(UNARY)
        shape = [*self.shape[:axis], 3, *self.shape[axis:]]
        self.add(lambda m, x, kept: torch.stack([x, function(x), x * 0.5], axis), shape)
