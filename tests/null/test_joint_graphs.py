"""Forward and backward of small networks as AOTAutograd has them: what of them ATen still makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.utils import _pytree as pytree

from kernelwright import spec
from kernelwright.capture import capture
from kernelwright.expand import expand
from kernelwright.graph import Call
from kernelwright.interpret import run
from kernelwright.problem import problem_from_module

WEIGHT_GRADIENT = {"convolution_backward.default", "getitem"}


class Loss(nn.Module):
    """A network, and the loss of its result: a tuple, as AOTAutograd wants it."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(*parts)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor]:
        return (F.cross_entropy(self.network(x), target),)


class Smallest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.min(x, dim=1, keepdim=True)[0] + x.amax(1, keepdim=True) * x[:, ::2]


class Attention(nn.Module):
    """One head, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(16, 48), nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(self.norm(x)).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (query @ key.transpose(1, 2) / 4).masked_fill(~seen, -torch.inf)
        return (x + scores.softmax(-1) @ value).mean(1)


def images() -> Tensor:
    return torch.randn(2, 3, 9, 9)


# Each with the calls that stay with ATen, of the forward and of the backward.
NETWORKS: dict[str, tuple[tuple[nn.Module, ...], Tensor, set[str]]] = {
    "chain": (
        (nn.Linear(16, 32), nn.GroupNorm(4, 32), nn.Mish(), nn.Hardtanh(), nn.BatchNorm1d(32)),
        torch.randn(4, 16),
        {"add.Tensor"},  # counts batches
    ),
    "extremes": (
        (nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), Smallest()),
        torch.randn(4, 16),
        {"_to_copy.default"},  # makes integers
    ),
    "attention": ((Attention(), nn.SiLU()), torch.randn(4, 6, 16), set()),
    "images": (
        (
            *(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8, eps=1e-3).eval(), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, 2, groups=8), nn.AvgPool2d(2), nn.GroupNorm(2, 8)),
            *(nn.ConvTranspose2d(8, 4, 2, 2), nn.Flatten()),
        ),
        images(),
        WEIGHT_GRADIENT,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_stays_with_aten(name: str) -> None:
    parts, x, kept = NETWORKS[name]
    module = Loss(*parts)
    target = torch.zeros(x.shape[0], dtype=torch.int64)
    joint, _ = aot_export_module(module, (x, target), trace_joint=True, output_loss_index=0)
    held = (*module.parameters(), *module.buffers(), x, target)
    inputs = tuple(v.detach().clone() for v in held)
    problem = problem_from_module(joint, inputs)
    graph = expand(capture(replace(problem, held=frozenset(range(len(inputs))))))
    spec.check_graph(graph, "expand")
    calls = {n.payload.target for n in graph if n.op == "opaque" and isinstance(n.payload, Call)}
    assert {call.removeprefix("torch.ops.aten.") for call in calls} == kept

    def widened(value: Any) -> Any:
        return value.double() if value.is_floating_point() else value

    wide = tuple(map(widened, inputs))
    ours, theirs = (pytree.tree_leaves(made) for made in (run(graph, joint, wide)[0], joint(*wide)))
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-6, atol=1e-8)
