"""Windows that see most of their picture: means of convolutions over space, and such pools."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.line = nn.Conv1d(channels, filters, 5, padding=2)
        self.plane = nn.Conv2d(channels, filters, 3, padding=2, dilation=2)
        self.narrow = nn.Conv2d(channels, filters, 3)
        self.volume = nn.Conv3d(channels, filters, 3)
        self.pool = nn.AvgPool2d((19, 30), stride=(2, 1))

    def forward(self, line, plane, volume):
        means = (
            self.line(line).mean(2),
            self.plane(plane).mean((2, 3)),
            self.narrow(plane[..., 1:]).sum((2, 3)),
            self.volume(volume).mean((2, 3, 4)),
        )
        largest = F.max_pool2d(torch.sin(plane), (22, 29), stride=1)
        return torch.cat(means, 1), self.pool(torch.tanh(plane)) * 2, largest


batch_size = 3
channels = 3
filters = 5


def get_inputs():
    return [
        torch.randn(batch_size, channels, 301) + 0.5,
        torch.randn(batch_size, channels, 24, 32) - 0.5,
        torch.randn(batch_size, channels, 9, 10, 12) + 1,
    ]


def get_init_inputs():
    return [channels, filters]
