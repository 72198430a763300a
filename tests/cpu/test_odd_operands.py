"""Operators over operands that few models have: no axes, no elements, weights that are inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checking import check_close
from torch import nn
from torch.utils import _pytree as pytree

import kernelwright
from kernelwright.plan import ALWAYS


class Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        pytest.param(lambda x, w: F.prelu(x, w) + 1, (drawn(), drawn()), id="prelu"),
        pytest.param(lambda x, w: F.prelu(x, w) + 1, (drawn(4), drawn()), id="prelu_of_one_slope"),
        pytest.param(lambda x: x.roll(1, 0) + 1, (drawn(0, 3),), id="roll_of_nothing"),
        pytest.param(
            lambda x, w: F.conv3d(x, w).relu(),
            (drawn(2, 2, 3, 3, 3), drawn(2, 2, 2, 2, 2)),
            id="filters_as_many_as_samples",
        ),
        pytest.param(
            lambda x, w: F.conv2d(x, w, groups=2).relu(),
            (drawn(4, 4, 5, 5), drawn(4, 2, 2, 2)),
            id="filters_in_groups",
        ),
        pytest.param(
            lambda x, w: F.conv_transpose2d(x, w).relu(),
            (drawn(2, 2, 3, 3), drawn(2, 2, 2, 2)),
            id="transposed",
        ),
    ],
)
def test_odd_operands(function: Callable[..., Any], args: Any) -> None:
    fused: Any = kernelwright.optimize(Called(function), args, policy=ALWAYS, kinds="given")
    exact = function(*pytree.tree_map(torch.Tensor.double, args))
    check_close("the result", fused(*args), function(*args), exact)
    assert not fused.fallbacks
