"""Kinds of tensors: sizes, types, layouts, structures of results."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from situations.parts import WIDE, Block, Compile, block, grads, rows, situation, tail, weights


@situation()
def every_batch(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    found = []
    for count in (4, 5, 7, 2, 1, 0, 33):
        x = rows(count, grad=True)
        y = g(x)
        y.sum().backward()
        found.append((y, x.grad))
    return found, grads(m)


@situation()
def every_batch_from_the_first(compile_: Compile) -> Any:
    g = compile_(tail, dynamic=True)
    return [g(rows(count)) for count in (3, 4, 6, 2)]


@situation()
def sequences_of_all_lengths(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        return F.softmax(x * 2, 1) + x.shape[1]

    g = compile_(f)
    return [g(torch.randn(2, count, WIDE)) for count in (3, 4, 5, 3, 6)]


@situation()
def sizes_are_computed_with(compile_: Compile) -> Any:
    def f(x: Tensor, n: int) -> tuple[Tensor, int]:
        b, s, _ = x.shape
        flat = x.reshape(b * s, -1)
        return tail(flat).view(b, s, -1)[:, : s // 2] * n, b * s

    g = compile_(f)
    return [g(torch.randn(b, s, WIDE), n) for b, s, n in ((2, 4, 3), (3, 4, 4), (5, 4, 5))]


@situation()
def a_dimension_is_marked(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    x = rows(6)
    torch._dynamo.mark_dynamic(x, 0)
    return g(x), g(rows(3)), g(rows(9))


@situation()
def numbers_change(compile_: Compile) -> Any:
    def f(x: Tensor, scale: float, n: int) -> Tensor:
        return tail(x * scale) + n

    g = compile_(f)
    return [g(rows(), s, n) for s, n in ((0.5, 2), (0.25, 3), (4.0, 4), (0.5, 5))]


@situation()
def nothing_and_one(compile_: Compile) -> Any:
    w, b = weights()
    g = compile_(block)
    return g(rows(0), w, b), g(rows(1), w, b), g(torch.randn(WIDE), w, b)


@situation()
def tensors_without_axes(compile_: Compile) -> Any:
    def f(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return tail(x * s), s.exp() + x.sum()

    s = torch.tensor(2.0, requires_grad=True)
    y, t = compile_(f)(rows(), s)
    (y.square().sum() + t).backward()
    return y, t, s.grad


@situation()
def every_type(compile_: Compile) -> Any:
    g = compile_(tail)
    kinds = (torch.float64, torch.bfloat16, torch.float16, torch.float32)
    return [g(rows().to(kind)) for kind in kinds]


@situation()
def integers_and_masks(compile_: Compile) -> Any:
    def f(x: Tensor, i: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        y = tail(x)
        return y.masked_fill(mask, 0.0), y[:, i], (i * 2 + 1) % 3, mask & (x > 0)

    return compile_(f)(rows(), torch.tensor([1, 3, 5]), torch.rand(4, WIDE) > 0.5)


@situation()
def complex_numbers(compile_: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.fft.rfft(x)
        return z * 2, tail(z.abs())

    return compile_(f)(rows())


@situation()
def transposed_and_cut_inputs(compile_: Compile) -> Any:
    g = compile_(tail)
    big = torch.randn(WIDE, 4)
    wide = torch.randn(4, 2 * WIDE)
    return g(big.t()), g(wide[:, ::2]), g(wide[:, 3 : 3 + WIDE]), g(wide[:1, :WIDE].expand(4, WIDE))


@situation(because="channels_last")
def images_in_another_order(compile_: Compile) -> Any:
    m = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    g = compile_(m)
    x = torch.randn(2, 3, 6, 6)
    return g(x), g(x.contiguous(memory_format=torch.channels_last))


@situation(because="not a plain tensor")
def lazily_conjugated_inputs(compile_: Compile) -> Any:
    def f(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (z * 2).real, tail(x)

    z = torch.randn(4, WIDE, dtype=torch.complex64)
    g = compile_(f)
    return g(z.conj(), rows()), g(z, rows())


@situation()
def results_of_all_structures(compile_: Compile) -> Any:
    class Pair(NamedTuple):
        a: Tensor
        b: Tensor | None

    @dataclasses.dataclass
    class Output:
        logits: Tensor
        rest: Any = None

    def f(x: Tensor) -> Any:
        y = tail(x)
        return Pair(y, None), Output(y * 2, [y.sum(), "text"]), collections.OrderedDict(z=y + 1)

    pair, output, ordered = compile_(f)(rows())
    return tuple(pair), output.logits, output.rest, dict(ordered)


@situation()
def sizes_and_types_come_back(compile_: Compile) -> Any:
    def f(x: Tensor) -> Any:
        y = tail(x)
        return y, y.shape, y.dtype, y.shape[0] * 2, y.ndim, y.device

    return compile_(f)(rows())


@situation()
def the_same_result_twice(compile_: Compile) -> Any:
    def f(x: Tensor) -> Any:
        y = tail(x)
        return y, y, [y, y.detach()]

    x = rows(grad=True)
    a, b, (c, d) = compile_(f)(x)
    (a + 2 * b + 3 * c).square().sum().backward()
    return a is b, b is c, a, d, x.grad


@situation()
def made_inside(compile_: Compile) -> Any:
    def f(x: Tensor) -> Any:
        steps = torch.arange(x.shape[1], dtype=x.dtype)
        return tail(x + steps), torch.zeros(2), torch.tensor([1, 2]), torch.ones_like(x)

    return compile_(f)(rows())


@situation()
def written_into_a_result(compile_: Compile) -> Any:
    def f(x: Tensor, out: Tensor) -> Tensor:
        torch.add(x, 1.0, out=out)
        return tail(out)

    out = torch.empty(4, WIDE)
    return compile_(f)(rows(), out), out


@situation()
def autocast_inside(compile_: Compile) -> Any:
    m = nn.Linear(WIDE, WIDE)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = m(x)
        return y, tail(x)

    return compile_(f)(rows())


@situation()
def autocast_around(compile_: Compile) -> Any:
    m = Block()
    g = compile_(m)
    x = rows(grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = g(x)
        z = compile_(tail)(y)
    y.float().sum().backward()
    return y, z, grads(x, m), g(x)


@situation()
def numpy_inside(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        import numpy as np

        return tail(torch.from_numpy(np.tanh(x.numpy())))

    return compile_(f)(rows())


@situation()
def layers_of_torch(compile_: Compile) -> Any:
    m = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool1d(2), nn.Flatten()
    )
    x = torch.randn(2, 2, 10, requires_grad=True)
    y = compile_(m)(x)
    y.square().sum().backward()
    return y, grads(x, m)


@situation()
def an_embedding_and_attention(compile_: Compile) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, WIDE)
            self.attention = nn.MultiheadAttention(WIDE, 2, batch_first=True)
            self.norm = nn.LayerNorm(WIDE)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            y, _ = self.attention(x, x, x, need_weights=False)
            return self.norm(x + y)

    m = Net()
    y = compile_(m)(torch.randint(0, 10, (2, 5)))
    y.square().sum().backward()
    return y, grads(m)


@situation()
def a_recurrence(compile_: Compile) -> Any:
    m = nn.LSTM(WIDE, WIDE, batch_first=True)

    def f(x: Tensor) -> Tensor:
        y, (h, _) = m(x)
        return tail(y) + h[0][:, None]

    x = torch.randn(2, 3, WIDE, requires_grad=True)
    y = compile_(f)(x)
    y.square().sum().backward()
    return y, grads(x, m)


@situation()
def a_sparse_argument(compile_: Compile) -> Any:
    def f(a: Tensor, x: Tensor) -> Tensor:
        return tail(torch.sparse.mm(a, x))

    return compile_(f)(torch.eye(4).to_sparse(), rows())


@situation(compiles=False)
def nothing_for_kernels(compile_: Compile) -> Any:
    return compile_(lambda x: (x.t(), x[0]))(rows())


@situation()
def another_default(compile_: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        return tail(x + torch.ones(WIDE))

    g = compile_(f)
    first = g(rows())
    try:
        torch.set_default_dtype(torch.float64)
        second = g(rows())
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("cpu"):
        third = g(rows())
    return first, second, third


@situation()
def not_a_number(compile_: Compile) -> Any:
    x = rows()
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), float("-inf")
    return compile_(lambda v: torch.tanh(v) + v.clamp(-1, 1).relu())(x)
