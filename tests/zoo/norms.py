"""Normalisations: torch's own, those that people write by hand, and parametrized weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.case import Case, x


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class RMSNormUpcast(RMSNorm):
    """The variant of language models: the statistic in float32, the result in the input's type."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.type_as(x) * self.weight


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, unbiased=False, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


class ChannelsFirstLayerNorm(nn.Module):
    """ConvNeXt's LayerNorm over the channels of batch x channels x height x width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class GlobalResponseNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.norm(x, p=2, dim=(2, 3), keepdim=True)
        return self.gamma * (x * scale / (scale.mean(dim=1, keepdim=True) + 1e-6)) + self.beta + x


class UnitVectors(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Standardise(nn.Module):
    """Z-scores over the batch itself, without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1e-5)


class NormChain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(12)
        self.second = nn.GroupNorm(3, 12)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.second(F.silu(self.first(x)))) + x


class StandardisedConv(nn.Conv2d):
    """Weight standardisation: the kernel is normalised at every call."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        weight = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        weight = weight / (weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        return F.relu(self._conv_forward(x, weight, self.bias))


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh())


def spectrally_normed() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 5)), nn.LeakyReLU())


def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5)), nn.Sigmoid())


CASES = [
    Case("batch_norm_1d_train", lambda: nn.BatchNorm1d(6), x(6), mode_matters=True),
    Case("batch_norm_1d_eval", lambda: nn.BatchNorm1d(6), x(6), mode="eval", mode_matters=True),
    Case("batch_norm_1d_sequence", lambda: nn.BatchNorm1d(3), x(3, 5), mode_matters=True),
    Case("batch_norm_2d_train", lambda: nn.BatchNorm2d(3), x(3, 4, 5), mode_matters=True),
    Case("batch_norm_2d_eval", lambda: nn.BatchNorm2d(3), x(3, 4, 5), mode="eval",
         mode_matters=True),
    Case("batch_norm_3d_train", lambda: nn.BatchNorm3d(2), x(2, 3, 4, 2), mode_matters=True),
    Case("batch_norm_plain", lambda: nn.BatchNorm2d(3, affine=False), x(3, 4, 5),
         mode_matters=True),
    Case("batch_norm_no_statistics", lambda: nn.BatchNorm1d(6, track_running_stats=False), x(6)),
    Case("batch_norm_cumulative", lambda: nn.BatchNorm1d(6, momentum=None), x(6),
         mode_matters=True, refused="the momentum is a number that is read from a tensor",
         falls_back="the momentum is a number that is read from a tensor"),
    Case("layer_norm", lambda: nn.LayerNorm(8), x(8)),
    Case("layer_norm_two_axes", lambda: nn.LayerNorm((4, 6)), x(4, 6)),
    Case("layer_norm_plain", lambda: nn.LayerNorm(8, elementwise_affine=False), x(3, 8)),
    Case("layer_norm_no_bias", lambda: nn.LayerNorm(8, bias=False), x(3, 8)),
    Case("group_norm", lambda: nn.GroupNorm(2, 6), x(6, 3, 3)),
    Case("group_norm_features", lambda: nn.GroupNorm(2, 12), x(12)),
    Case("instance_norm_1d", lambda: nn.InstanceNorm1d(4), x(4, 7)),
    Case("instance_norm_2d_affine", lambda: nn.InstanceNorm2d(3, affine=True), x(3, 4, 4)),
    Case("instance_norm_2d_statistics",
         lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), x(3, 4, 4),
         mode_matters=True,
         falls_back="instance_norm updates its statistics behind the graph",
         only_aten="instance_norm updates its statistics behind the graph"),
    Case("local_response_norm", lambda: nn.LocalResponseNorm(3), x(6, 4, 4)),
    Case("rms_norm", lambda: nn.RMSNorm(8), x(5, 8)),
    Case("rms_norm_by_hand", lambda: RMSNorm(8), x(5, 8)),
    Case("rms_norm_upcast_bfloat16", lambda: RMSNormUpcast(8).bfloat16(),
         lambda n: (torch.randn(n, 5, 8, dtype=torch.bfloat16),)),
    Case("layer_norm_by_hand", lambda: LayerNorm(8), x(5, 8)),
    Case("layer_norm_channels_first", lambda: ChannelsFirstLayerNorm(4), x(4, 3, 5)),
    Case("global_response_norm", lambda: GlobalResponseNorm(4), x(4, 3, 5)),
    Case("unit_vectors", UnitVectors, x(9)),
    Case("standardise_batch", Standardise, x(9)),
    Case("norm_chain", NormChain, x(12)),
    Case("weight_standardised_conv", lambda: StandardisedConv(3, 4, 3), x(3, 6, 6)),
    Case("weight_norm", weight_normed, x(6)),
    Case("spectral_norm", spectrally_normed, x(6), mode_matters=True),
    Case("spectral_norm_eval", spectrally_normed, x(6), mode="eval", mode_matters=True),
    Case("orthogonal", orthogonal, x(5)),
]  # fmt: skip
