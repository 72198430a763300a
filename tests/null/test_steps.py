"""The host side as data: equal kernels are one, and steps print."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from written import planned

from kernelwright.lower.steps import Choice, Invoke, Launch, Library, Step, shown
from kernelwright.pipeline import Compiled


class Block(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.scale = nn.Parameter(torch.randn(width))
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.sin(self.norm(x)) * self.scale)


def stacked(*blocks: Block, target: str = "cpu") -> Compiled:
    def forward(m: Any, x: Tensor) -> Tensor:
        for block in blocks:
            x = getattr(m, f"b{blocks.index(block)}")(x)
        return x

    named = {f"b{i}": block for i, block in enumerate(blocks)}
    return planned(forward, 6, 48, target=target, **named)


def steps(compiled: Compiled) -> list[Step]:
    """The steps of a call, those of a routine wherever it is invoked."""
    inside = {r.name: r.steps for r in compiled.lowered.routines}
    every = compiled.lowered.steps
    return [
        s for step in every for s in (inside[step.routine] if isinstance(step, Invoke) else [step])
    ]


def launches(compiled: Compiled) -> list[str]:
    return [s.kernel for s in steps(compiled) if isinstance(s, Launch)]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_equal_blocks_share_their_kernels(target: str) -> None:
    one, four = (stacked(*(Block(48) for _ in range(n)), target=target) for n in (2, 5))
    assert len(four.kernels) == len(one.kernels)
    assert sum(map(len, four.lowered.users.values())) > len(four.kernels) + len(four.lowered.few)
    structs = re.findall(r'^extern "C" int launch_(\w+)\(.*\{$', four.source, re.MULTILINE)
    assert len(structs) == len(set(structs)) == len(four.kernels) + len(four.lowered.few)


def test_a_kernel_says_where_else_it_is_launched() -> None:
    compiled = stacked(*(Block(48) for _ in range(8)))
    name = launches(compiled)[1]  # the first has no bias of a block before it
    assert launches(compiled).count(name) == 7
    assert (
        "// Launched 7 times; also for " in compiled.source and ", and 2 more." in compiled.source
    )


def test_another_constant_is_another_kernel() -> None:
    alike = stacked(Block(48), Block(48), Block(48))
    other = stacked(Block(48), Block(48), Block(48, eps=1e-3))
    assert len(other.kernels) == len(alike.kernels) + 1


def test_steps_print() -> None:
    text = shown(stacked(Block(48), target="cpu").lowered.steps)
    assert "torch.ops.aten.linear.default" in text and " = sin" not in text
    seated = steps(stacked(Block(48), target="cuda"))
    (choice,) = (s for s in seated if isinstance(s, Choice))
    assert str(choice).startswith("if generated and batch")
    assert any(isinstance(s, Library) for s in choice.otherwise) or choice.otherwise


# ---- routines ------------------------------------------------------------------------------------


def routines(compiled: Compiled) -> Counter[str]:
    return Counter(s.routine for s in compiled.lowered.steps if isinstance(s, Invoke))


def test_equal_tasks_are_one_routine() -> None:
    compiled = stacked(*(Block(48) for _ in range(5)))
    assert max(routines(compiled).values()) == 4  # the first has no bias of a block before it
    assert "Launched 4 times" in compiled.source and compiled.source.count(".launch(") < 5
    (routine,) = compiled.lowered.routines
    assert str(routine).startswith(f"{routine.name}({', '.join(routine.parameters)}):")


def test_a_choice_is_a_routine_of_its_own() -> None:
    compiled = stacked(Block(48), target="cuda")
    assert not any(isinstance(s, Choice) for s in compiled.lowered.steps)
    assert any(isinstance(r.steps[0], Choice) for r in compiled.lowered.routines)


def test_another_kernel_or_size_is_another_routine() -> None:
    alike = stacked(Block(48), Block(48), Block(48), Block(48))
    other = stacked(Block(48), Block(48), Block(48), Block(48, eps=1e-3))
    assert [*routines(alike).values()] == [3] and [*routines(other).values()] == [2]

    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.cat([m.a(x), m.b(x), m.c(x)], dim=1).sort(dim=1).values

    a, b, c = nn.Linear(48, 512), nn.Linear(48, 512), nn.Linear(48, 1024)
    made = routines(planned(forward, 6, 48, target="cuda", a=a, b=b, c=c))
    assert sorted(made.values()) == [1, 2]


def test_a_routine_is_named_by_what_its_users_share() -> None:
    source = stacked(*(Block(48) for _ in range(4)), target="cuda").source
    heads = re.findall(r"def (_kw_\w+)\(\s*batch, device, ([^)]*)\s*\):", source)
    shared = [names for name, names in heads if "target" in names]
    assert shared and all("weight" in names.split(", ") for names in shared)
    assert re.search(r'= _kw_\w+\(\s*batch, device, [^)]*"b2\.linear\.weight"', source)
