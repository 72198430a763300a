"""Results that are an input, a view of it that changes nothing, or a copy where it has gaps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kernelwright
from kernelwright.plan import ALWAYS

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "view": lambda x: x.view(x.shape),
    "expand": lambda x: x.expand_as(x),
    "contiguous": lambda x: x.contiguous(),
    "expand and contiguous": lambda x: x.expand(x.shape[0], 2, 6).contiguous(),
    "flatten and contiguous": lambda x: x.flatten(1).contiguous(),
}


def _gapped(x: Tensor) -> Tensor:
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "gapped": _gapped,
    "expanded": lambda x: x[:1].expand_as(x),
    "turned": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
}


class Model(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return WAYS[self.way](x), torch.sigmoid(x) + 1


@pytest.mark.parametrize("way", WAYS)
def test_what_is_handed_on_is_what_eager_hands_on(way: str, extensions: object) -> None:
    eager = Model(way)
    fused = kernelwright.optimize(Model(way), (torch.randn(5, 2, 6),), policy=ALWAYS)
    for name, lay in LAYOUTS.items():
        x = lay(torch.randn(5, 2, 6)).detach().requires_grad_(name == "dense")
        ours, theirs = fused(x)[0], eager(x)[0]
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride(), name
        assert (ours is x) == (theirs is x), name
        assert (ours.data_ptr() == x.data_ptr()) == (theirs.data_ptr() == x.data_ptr()), name
        assert (ours.grad_fn is None) == (theirs.grad_fn is None), name
