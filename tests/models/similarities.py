"""Lengths, angles, deviations and blends of two values."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        angle = F.cosine_similarity(x, y, dim=1)
        spread, centre = torch.std_mean(x, dim=1)
        blend = torch.lerp(F.normalize(x, dim=1), y, 0.3)
        return angle * spread - centre, torch.addcmul(blend, x, y, value=0.5).clamp(x - 1, y + 2)


batch_size = 6


def get_inputs():
    return [torch.randn(batch_size, 15), torch.randn(batch_size, 15)]


def get_init_inputs():
    return []
