"""A random model is written step by step, and each step is tried at once, at two batch sizes.

In: Choices. Out: a Recipe. The one idea: an operator of the grammar only proposes an expression;
running it in float64 tells what it gives, and a step that torch refuses, or whose values are not
finite, large, or too many, is not taken. So the grammar can be careless, and no table of shapes and
types has to be kept in step with torch.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzzing.choices import Choices
from fuzzing.recipe import BATCH, Recipe, Statement

OTHER = 7  # a second batch size, to see which sizes follow it
LARGEST = 1e3
FLOAT, INT, BOOL = "float", "int", "bool"


@dataclass(frozen=True)
class Limits:
    """How large a model gets."""

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 9, 12)
    channels: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    features: tuple[int, ...] = (1, 2, 4, 6, 7, 8, 12)
    elements: int = 4000
    steps: tuple[int, int] = (2, 12)


SMALL = Limits()
# Wide enough for generated products, whose columns and depth are multiples of eight.
WIDE = Limits(
    sizes=(2, 3, 4, 8, 9, 16, 24, 32),
    channels=(2, 4, 8, 16),
    features=(8, 16, 24, 32, 40, 64, 128),
    elements=40000,
)


@dataclass(frozen=True)
class Value:
    """A name with what it is: its values at both batch sizes."""

    name: str
    first: Tensor
    second: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.first.shape)

    @property
    def rank(self) -> int:
        return self.first.ndim

    @property
    def kind(self) -> str:
        if self.first.is_floating_point():
            return FLOAT
        return BOOL if self.first.dtype is torch.bool else INT

    def follows(self, axis: int) -> bool:
        """Whether the size of an axis follows the batch."""
        return self.first.shape[axis] != self.second.shape[axis]

    @property
    def sizes(self) -> list[str]:
        """The sizes as text that holds for any batch."""
        return [
            f"{self.name}.shape[{i}]" if self.follows(i) else str(d)
            for i, d in enumerate(self.shape)
        ]


class Refused(Exception):
    """A step that cannot be taken here."""


class Writer:
    """`grammar` are the operators: functions of a writer that `emit` a statement or refuse."""

    def __init__(
        self,
        choices: Choices,
        grammar: tuple[Callable[[Writer], None], ...],
        limits: Limits = SMALL,
        dtypes: tuple[str, ...] = ("float32",),
    ) -> None:
        self.choices, self.limits = choices, limits
        self.grammar = grammar
        self.dtype = choices.pick(dtypes)
        self.training = choices.chance(30)
        self.parts: list[tuple[str, str]] = []
        self.module = nn.Module()
        self.inputs: list[tuple[str, str]] = []
        self.statements: list[Statement] = []
        self.values: list[Value] = []
        self.count = 0
        self.generator = torch.Generator().manual_seed(choices.integer(0, 9))

    # ---- the whole -------------------------------------------------------------------------------

    def write(self) -> Recipe:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            self._first_inputs()
            wanted = self.choices.integer(*self.limits.steps)
            for _ in range(3 * wanted):
                if len(self.statements) >= wanted:
                    break
                try:
                    self.choices.pick(self.grammar)(self)
                except Refused:
                    continue
            return self._recipe().pruned()

    def _first_inputs(self) -> None:
        for _ in range(self.choices.pick((1, 1, 1, 2))):
            rank = self.choices.pick((2, 2, 3, 3, 4, 4, 5, 1))
            sizes = [self.choices.pick(self.limits.sizes) for _ in range(rank - 1)]
            if rank > 2:
                sizes[0] = self.choices.pick(self.limits.channels)
            while len(sizes) > 1 and torch.Size(sizes).numel() * BATCH > self.limits.elements:
                sizes.remove(max(sizes))
            self.input(sizes)

    def _recipe(self) -> Recipe:
        used = {name for s in self.statements for name in s.uses}
        made = [name for s in self.statements for name in s.names] or [self.values[0].name]
        loose = [name for name in made if name not in used][-3:]
        more = [self.choices.pick(made)] if self.choices.chance(25) else []
        names = list(dict.fromkeys([*loose, *more]))
        forms = ["{0}"] if len(names) == 1 else ["({0})", "[{0}]", "{{{1}}}", "({2}, ({3},))"]
        text = self.choices.pick(forms).format(
            ", ".join(names),
            ", ".join(f'"{n}": {n}' for n in names),
            names[0],
            ", ".join(names[1:]),
        )
        parts = (tuple(self.inputs), tuple(self.parts), tuple(self.statements))
        batch = self.choices.pick((BATCH, BATCH, BATCH, 1))
        return Recipe(*parts, text, self.training, self.dtype, batch=batch)

    # ---- what operators ask for ------------------------------------------------------------------

    def value(self, kind: str = FLOAT, where: Callable[[Value], bool] = lambda v: True) -> Value:
        """An earlier value, the last ones first."""
        fitting = [v for v in self.values if v.kind == kind and where(v)]
        if not fitting:
            raise Refused
        recent = fitting[-3:] if self.choices.chance(75) else fitting
        return self.choices.pick(list(reversed(recent)))

    def axis(self, value: Value, batch: int = 8) -> int:
        """An axis, seldom the batch; negative at times."""
        if value.rank == 0:
            raise Refused
        axes = [i for i in range(value.rank) if not value.follows(i)]
        free = [i for i in range(value.rank) if value.follows(i)]
        if not axes or (free and self.choices.chance(batch)):
            axes = free
        axis = self.choices.pick(axes)
        return axis - value.rank if self.choices.chance(30) else axis

    def axes(self, value: Value) -> list[int]:
        """Some axes, distinct."""
        count = self.choices.integer(1, max(1, value.rank))
        return sorted({self.axis(value) % value.rank for _ in range(count)})

    def fixed(self, value: Value, axis: int) -> int:
        """The size of an axis that does not follow the batch."""
        if value.follows(axis):
            raise Refused
        return value.shape[axis]

    def input(self, sizes: list[int], text: str = "torch.randn({})", batch: bool = True) -> Value:
        """One more input of forward."""
        name = f"x{len(self.inputs)}"
        listed = ", ".join(["batch"] * batch + [str(s) for s in sizes])
        made = text.format(listed)
        if self.dtype != "float32" and made.startswith("torch.randn("):
            made = f"{made[:-1]}, dtype=torch.{self.dtype})"
        self.inputs.append((name, made))
        tries = [eval(made, {"torch": torch, "batch": n}) for n in (BATCH, OTHER)]
        wide = [t.double() if t.is_floating_point() else t for t in tries]
        value = Value(name, *wide)
        self.values.append(value)
        return value

    def part(self, text: str) -> str:
        """A module, parameter or buffer: its name as the forward spells it."""
        name = f"p{len(self.parts)}"
        line = f"self.{name} = {text}"
        if text.startswith("buffer "):
            line = f'self.register_buffer("{name}", {text[7:]})'
        try:
            exec(line, {"self": self.module, "torch": torch, "nn": nn})
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused from error
        self.parts.append((name, line))
        made = getattr(self.module, name)
        if isinstance(made, nn.Module):
            made.train(self.training)
        randomise(self.module, name)
        return f"self.{name}"

    def emit(self, text: str) -> Value:
        """One more statement."""
        results = [self._tried(text, second) for second in (False, True)]
        return self._keep([results[0]], [results[1]], text)[0]

    def emit_several(self, text: str) -> list[Value]:
        """A statement with several results, each under a name."""
        results = [list(self._tried(text, second)) for second in (False, True)]
        if not 1 < len(results[0]) < 6:
            raise Refused
        return self._keep(*results, text)

    def _keep(self, first: list[Any], second: list[Any], text: str) -> list[Value]:
        if len(first) != len(second):
            raise Refused
        for a, b in zip(first, second, strict=True):
            self._check(a)
            self._check(b)
            if a.ndim != b.ndim or a.dtype != b.dtype:
                raise Refused
        names = [f"v{self.count + i}" for i in range(len(first))]
        made = [Value(*of) for of in zip(names, first, second, strict=True)]
        self.count += len(first)
        self.statements.append(Statement(", ".join(names), text))
        self.values += made
        return made

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.ndim > 6 or value.numel() == 0:
            raise Refused
        if value.is_complex() or value.numel() > self.limits.elements:
            raise Refused
        if value.is_floating_point() and not bool((value.abs() < LARGEST).all()):
            raise Refused

    def _tried(self, text: str, second: bool) -> Any:
        scope = {v.name: v.second if second else v.first for v in self.values}
        scope |= {"self": self.module, "torch": torch, "F": F, "nn": nn}
        try:
            return eval(text, scope)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise Refused from error


def randomise(module: nn.Module, prefix: str = "") -> None:
    """float64, weights of their usual size, the rest of any value; running variances positive.

    The same for equal modules, whatever their parts are called.
    """
    module.double()
    generator = torch.Generator().manual_seed(11)
    for name, value in itertools.chain(module.named_parameters(), module.named_buffers()):
        if not value.is_floating_point() or not name.startswith(prefix):
            continue
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if value.ndim > 1:
            drawn *= max(value[0].numel(), 1) ** -0.5
        value.data.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn)
