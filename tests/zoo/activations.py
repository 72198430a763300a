"""Every common activation alone, and a few in chains."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x

STOCK = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "prelu": nn.PReLU(),
    "prelu_per_channel": nn.PReLU(6),
    "rrelu_eval": nn.RReLU(),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "celu": nn.CELU(1.3),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "sigmoid": nn.Sigmoid(),
    "log_sigmoid": nn.LogSigmoid(),
    "tanh": nn.Tanh(),
    "hardtanh": nn.Hardtanh(-0.5, 0.8),
    "hardsigmoid": nn.Hardsigmoid(),
    "hardswish": nn.Hardswish(),
    "softplus": nn.Softplus(beta=2.0, threshold=5.0),
    "softsign": nn.Softsign(),
    "softshrink": nn.Softshrink(0.3),
    "hardshrink": nn.Hardshrink(0.3),
    "tanhshrink": nn.Tanhshrink(),
    "threshold": nn.Threshold(0.1, -2.0),
    "softmax": nn.Softmax(dim=1),
    "softmin": nn.Softmin(dim=-1),
    "log_softmax": nn.LogSoftmax(dim=-1),
    "glu": nn.GLU(dim=-1),
    "relu_inplace": nn.ReLU(inplace=True),
}

OPTIONS: dict[str, Any] = {
    "rrelu_eval": {"mode": "eval", "mode_matters": True, "only_aten": "a leaky ReLU of ATen"},
    "relu_inplace": {"falls_back": "it writes into its input", "only_aten": "ATen writes in place"},
}


class Snake(nn.Module):
    """x + sin(a x)^2 / a with a learned a for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        a = F.softplus(self.a) + 0.1
        return x + torch.sin(a * x).pow(2) / a


class SquaredReLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(x) * torch.sigmoid(x)
        x = F.hardswish(x) + torch.tanh(x)
        return F.softplus(torch.clamp(x, -2.0, 3.0)).sqrt()


class Swish(nn.Module):
    """Swish with a learned temperature, a 0-dimensional parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class ByName(nn.Module):
    """The activation is looked up in nn.functional by a configured name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = getattr(F, name)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * 2.0


CASES = [
    Case(f"activation_{name}", lambda m=m: copy.deepcopy(m), x(6), **OPTIONS.get(name, {}))
    for name, m in STOCK.items()
] + [
    Case("activation_snake", lambda: Snake(6), x(6)),
    Case("activation_squared_relu", SquaredReLU, x(5, 3)),
    Case("activation_chain", Chain, x(9)),
    Case("activation_swish_scalar_parameter", Swish, x(7)),
    Case("activation_by_name", lambda: ByName("mish"), x(7)),
    Case("activation_softmax2d", nn.Softmax2d, x(3, 4, 5)),
]
