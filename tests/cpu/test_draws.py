"""Random numbers go by places in memory: a call draws what eager's does, and leaves as many."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from written import Written

import kernelwright
from kernelwright.plan import ALWAYS

pytestmark = pytest.mark.usefixtures("extensions")
Forward = Callable[[nn.Module, Tensor], Tensor]


def drop(x: Tensor, rate: float = 0.5) -> Tensor:
    return F.dropout(x, rate, True)


# Of x, (6, 4, 4, 2).
KERNELS: dict[str, Forward] = {
    "copy of a transpose": lambda m, x: drop(x.transpose(0, 1).contiguous()).exp(),
    "what a kernel makes, copied": lambda m, x: drop(x.exp().transpose(0, 1).contiguous()).exp(),
    "what keeps an order": lambda m, x: drop(x.transpose(0, 1).exp()).sum(1),
    "what follows the input": lambda m, x: drop(x * 2).sum(1),
    "copy by reshape": lambda m, x: drop(x.exp().transpose(1, 2).reshape(-1, 8)).sigmoid(),
    "clone in channels_last": lambda m, x: drop(
        x.exp().clone(memory_format=torch.channels_last)
    ).sum(1),
    "rand_like": lambda m, x: torch.rand_like(x.transpose(0, 1).exp()).sum(1),
    "bernoulli": lambda m, x: torch.bernoulli(x.transpose(1, 2).sigmoid()).sum(1),
    "rrelu": lambda m, x: F.rrelu(x.transpose(0, 1).sigmoid() - 0.5, training=True).sum(1),
    "features": lambda m, x: F.dropout2d(x.transpose(1, 2).exp(), 0.5, True).sum(1),
    "all": lambda m, x: drop(x.transpose(0, 1).contiguous(), 1.0).exp() + torch.rand(2),
    "none": lambda m, x: drop(x.transpose(0, 1).contiguous(), 0.0).exp() + torch.rand(2),
    "as_strided": lambda m, x: x.transpose(0, 1).exp().as_strided((3, 2), (1, 4)).tanh(),
}
LEFT: dict[str, Forward] = {
    "alpha_dropout": lambda m, x: F.alpha_dropout(x.transpose(0, 1).exp(), 0.5, True).sum(1),
    "in place": lambda m, x: torch.empty_like(x.transpose(0, 1)).bernoulli_(0.3).sum(1) + x.sum(0),
    "unread": lambda m, x: (drop(x), x.exp() + torch.rand(2))[1],
    "unread, without an operand": lambda m, x: (torch.rand(3), x.exp())[1],
}


@pytest.mark.parametrize("name", [*KERNELS, *LEFT])
def test_the_numbers_are_eagers(name: str) -> None:
    module = Written((KERNELS | LEFT)[name]).train()
    x = torch.randn(6, 4, 4, 2)
    fused = kernelwright.optimize(copy.deepcopy(module), (x,), policy=ALWAYS)
    for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
        with torch.no_grad():
            torch.manual_seed(3)
            theirs, after = module(given), torch.rand(3)
            torch.manual_seed(3)
            torch.testing.assert_close(fused(given), theirs)
            assert torch.equal(torch.rand(3), after)
        if given is x:
            assert bool(fused.fallbacks) is (name in LEFT)
