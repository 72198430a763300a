"""Random programs with control flow: Python around operators, as text, by a seed.

In: a seed. Out: a Program: the text of a function of tensors, a number and a flag, and whether its
gradients are asked for. Programs without gradients write into tensors, those of others too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from situations.parts import WIDE, Compile, block, grads, rows, tail, weights

UNARY = (
    *("tail({a})", "F.gelu({a})", "torch.tanh({a} * 0.5)", "{a}.relu() + 1.0", "-{a}", "{a}.abs()"),
    *("F.layer_norm({a}, (8,))", "{a} - {a}.mean(-1, keepdim=True)", "{a}.clamp(-1, n)"),
    *("{a} / ({a}.exp().sum() + 1)", "{a}.t().contiguous().t()", "block({a}, w, b)", "{a} * n"),
    *("torch.where({a} > 0, {a}, 0.1)", "{a}.flip(0)", "{a}.cumsum(0)", "{a}.float()"),
    "{a}[torch.arange(4) % 3 - 1]",
)
BINARY = (
    *("{a} + {b}", "{a} * {b}", "torch.maximum({a}, {b})", "{a} - {b} * 0.5"),
    "{a} @ {b}.t() @ {b}",
)
WRITING = (
    *("{a}.mul_(0.5)", "{a}[1] = {b}[0]", "{a}.add_({b})", "{a}[:, 2:4] += 1.0"),
    "{a}.t()[0].zero_()",
)
TESTS = (
    *("flag", "n > 2", "{a}.sum() > 0", "{a}.shape[0] == 4", "float({a}[0, 0]) > 0.2"),
    "len(kept) > 1",
)


@dataclass(frozen=True)
class Program:
    text: str
    gradients: bool

    def run(self, compile_: Compile) -> Any:
        """Four calls and what they leave behind."""
        space: dict[str, Any] = {"torch": torch, "F": F, "tail": tail, "block": block, "kept": []}
        exec(self.text, space)
        f = compile_(space["f"])
        w, b = weights(grad=self.gradients)
        space.update(w=w, b=b)
        found: list[Any] = []
        for n, flag, sign in ((2, True, 1.0), (2, False, -1.0), (3, True, -1.0), (2, True, 1.0)):
            x, y = (rows().abs() * sign for _ in range(2))
            x.requires_grad_(self.gradients)
            result = f(x, y, n, flag)
            if self.gradients and result[0].requires_grad:
                result[0].square().sum().backward()
            found.append((result, x.detach(), y, x.grad))
        return found, grads(w, b), list(space["kept"])


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gradients = seed % 2 == 0
        self.names = ["x", "y"]

    def pick(self) -> str:
        return self.random.choice(self.names[-4:])

    def expression(self) -> str:
        form = self.random.choice(UNARY if self.random.random() < 0.7 else BINARY)
        return form.format(a=self.pick(), b=self.pick())

    def statements(self, count: int, depth: int) -> Iterator[str]:
        for _ in range(count):
            yield from self.statement(depth)

    def statement(self, depth: int) -> Iterator[str]:
        kinds: list[Callable[[int], Iterator[str]]] = [self.assigned] * 5 + [self.kept_for_later]
        kinds += [self.broken, self.drawn]
        kinds += [] if self.gradients else [self.written, self.written]
        kinds += [self.branch, self.branch, self.loop, self.called] if depth < 2 else []
        yield from self.random.choice(kinds)(depth)

    def assigned(self, depth: int) -> Iterator[str]:
        text = self.expression()
        # What is bound in a branch alone may not be there behind it.
        name = f"v{len(self.names)}" if depth == 0 else self.random.choice(self.names[2:] or ["y"])
        self.names += [name] if depth == 0 else []
        yield f"{name} = {text}"

    def written(self, depth: int) -> Iterator[str]:
        yield self.random.choice(WRITING).format(a=self.pick(), b=self.pick())

    def kept_for_later(self, depth: int) -> Iterator[str]:
        yield f"kept.append({self.pick()}.detach().clone())"

    def broken(self, depth: int) -> Iterator[str]:
        yield "torch._dynamo.graph_break()"

    def drawn(self, depth: int) -> Iterator[str]:
        yield f"y = y + torch.rand_like(y) + F.dropout({self.pick()}.detach(), 0.3)"

    def inside(self, depth: int) -> Iterator[str]:
        yield from (f"    {line}" for line in self.statements(self.random.randint(1, 2), depth + 1))

    def branch(self, depth: int) -> Iterator[str]:
        yield f"if {self.random.choice(TESTS).format(a=self.pick())}:"
        yield from self.inside(depth)
        if self.random.random() < 0.6:
            yield "else:"
            yield from self.inside(depth)

    def loop(self, depth: int) -> Iterator[str]:
        yield f"for i in range({self.random.choice(('2', 'n', '3'))}):"
        if self.random.random() < 0.4:
            yield f"    if i == 1 and {self.random.choice(('flag', 'n == 2'))}:"
            yield f"        {self.random.choice(('break', 'continue'))}"
        yield from self.inside(depth)

    def called(self, depth: int) -> Iterator[str]:
        yield "def inner(z):"
        yield f"    return {self.random.choice(UNARY).format(a='z')} + {self.pick()}"
        yield f"y = inner({self.pick()})"

    def program(self) -> Program:
        lines = [*self.statements(self.random.randint(4, 7), 0)]
        last = self.pick()
        forms = (f"({last} * 1.0, y)", f"[{last} + 0.0, {{'k': y, 'n': n}}]")
        results = self.random.choice((*forms, f"({last} + y, None, {last})"))
        body = "\n".join(f"    {line}" for line in [*lines, f"return {results}"])
        return Program(f"def f(x, y, n, flag):\n{body}\n", self.gradients)


def program(seed: int) -> Program:
    return _Writer(seed).program()


assert WIDE == 8  # as the texts have it
