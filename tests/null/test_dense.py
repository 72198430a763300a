"""Copies are values: stored by whoever makes them, once, and only where somebody needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.expr import load
from kernelwright.interpret import run
from kernelwright.pipeline import Compiled, compile_problem
from kernelwright.plan import ALWAYS, copies
from kernelwright.problem import problem_from_module
from kernelwright.targets.sm_90 import SPLIT

Tensor = torch.Tensor
BATCH, TOKENS, WIDTH, HEADS = 4, 16, 32, 2


class Written(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.written = forward
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.written(self, x)


def heads(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    parts = m.qkv(x).view(-1, TOKENS, 3, HEADS, WIDTH // HEADS)
    return parts.permute(2, 0, 3, 1, 4).unbind(0)


def windows(m: Any, x: Tensor) -> Tensor:
    """Rows of four by four, cut into windows of two by two."""
    cut = m.norm(x).view(-1, 2, 2, 2, 2, WIDTH).transpose(2, 3)
    return m.out(cut.reshape(-1, 4, WIDTH))


def attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = heads(m, x)
    mixed = (q * 0.25 @ k.transpose(-2, -1)).softmax(-1) @ v
    return m.out(mixed.transpose(1, 2).reshape(-1, TOKENS, WIDTH))


def torch_attention(m: Any, x: Tensor) -> Tensor:
    """As nn.MultiheadAttention does it: a copying reshape before an operator of ATen."""
    parts = m.qkv(x).unflatten(-1, (3, WIDTH)).unsqueeze(0).transpose(0, -2).squeeze(-2)
    q, k, v = (p.reshape(-1, TOKENS * HEADS, WIDTH // HEADS).transpose(0, 1) for p in parts)
    return F.scaled_dot_product_attention(q, k, v)


def one_head(m: Any, x: Tensor) -> Tensor:
    q, _, _ = heads(m, x)
    return torch.matmul(q, x.view(-1, HEADS, WIDTH // HEADS, TOKENS)).tanh()


def also_returned(m: Any, x: Tensor) -> Any:
    turned = m.norm(x).view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2)
    return turned, m.out(turned.reshape(-1, TOKENS, WIDTH)).tanh()


def rolled_image(m: Any, x: Tensor) -> Tensor:
    """A roll over two axes that a view has joined: the kernel after it cannot see through that."""
    image = m.out(x).view(-1, 2, 2, 2, 2, WIDTH).transpose(2, 3).reshape(-1, 4, 4, WIDTH)
    return x + image.roll((1, 1), (1, 2)).reshape(-1, TOKENS, WIDTH)


def weight_turned(m: Any, x: Tensor) -> Tensor:
    return (x @ m.out.weight.T).relu()


ALL = [windows, attention, torch_attention, one_head, also_returned, rolled_image, weight_turned]


def compiled(forward: Callable[..., Any], target: str = "cuda", **options: Any) -> Compiled:
    torch.manual_seed(0)
    problem = problem_from_module(Written(forward), (torch.randn(BATCH, TOKENS, WIDTH),))
    return compile_problem(problem, target=target, **options)


def stored(made: Compiled) -> list[str]:
    """The copies of a plan: maps of a view that compute nothing."""
    graph = made.primitives
    maps = [n for n in graph if n.op == "map" and n.payload == load(0)]
    return [n.name for n in maps if graph[n.inputs[0]].op == "view"]


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("forward", ALL, ids=lambda f: f.__name__)
def test_nothing_is_copied_in_secret_and_the_values_are_the_same(
    forward: Callable[..., Any], target: str
) -> None:
    made = compiled(forward, target)
    assert copies(made.planned) == ()
    module, x = made.problem.module, torch.randn(BATCH, TOKENS, WIDTH)
    got, _ = run(made.primitives, module, (x,))
    torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-5)


def test_a_norm_stores_windows_and_nothing_else() -> None:
    made = compiled(windows)
    first = made.planned.regions[0]
    assert first.program is not None and len(first.program.stages) == 2
    assert [b.name for b in first.outputs] == stored(made)


def test_an_epilogue_stores_all_heads_at_once() -> None:
    made = compiled(attention, policy=ALWAYS)
    products = [r for r in made.planned.regions if r.gemm is not None]
    assert len(products) == len(made.planned.regions) - 1  # beside them only the attention
    assert len(stored(made)) == 1  # of what leaves the heads: products read these by strides


def test_the_library_gets_all_heads_as_one_copy() -> None:
    made = compiled(attention, "sm_80")
    assert len(stored(made)) == 2
    (first,) = [r for r in made.planned.regions if r.program is not None][:1]
    assert first.outputs[0].shape[0] == 3


def test_only_the_part_that_is_read_is_copied() -> None:
    made = compiled(one_head)
    (name,) = stored(made)
    assert made.primitives[name].type.shape[0] != 3
    assert made.primitives[name].type.shape[-1] == WIDTH // HEADS


def test_a_kernel_that_cannot_see_through_a_view_reads_a_copy() -> None:
    assert len(stored(compiled(rolled_image))) == 1


def test_a_turned_weight_is_read_as_it_lies() -> None:
    assert stored(compiled(weight_turned)) == []


def test_what_the_caller_sees_keeps_its_order() -> None:
    made = compiled(also_returned)
    eager = made.problem.module(*made.problem.inputs)[0]
    got, _ = run(made.primitives, made.problem.module, made.problem.inputs)
    assert got[0].stride() == eager.stride()


def test_copies_that_only_the_library_needs_are_counted() -> None:
    alone = SPLIT.fewest(197 * 768, 64, 197, each=197)
    assert alone is None
    assert SPLIT.fewest(197 * 768, 64, 197, each=197, copies=("result",)) is not None
    assert SPLIT.copy_time("left", 64, 8, 16) < SPLIT.copy_time("left", 64, 8, 16, batch=9)
