"""Average pools behind convolutions, dense and transposed, which are convolutions together."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        up = {"stride": 2, "padding": 1, "output_padding": 1}
        self.line = nn.Conv1d(channels, filters, 5, padding=2)
        self.plane = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.groups = nn.Conv2d(channels, filters, 3, padding=1, groups=2)
        self.narrow = nn.Conv2d(channels, filters, (3, 2), padding=(1, 0))
        self.volume = nn.Conv3d(channels, filters, 3)
        self.up = nn.ConvTranspose2d(channels, filters, 3, **up)
        self.twice = nn.ConvTranspose2d(channels, filters, 4, stride=2, padding=1, bias=False)
        self.beside = nn.ConvTranspose2d(channels, filters, 3, padding=1, groups=2)
        self.deep = nn.ConvTranspose3d(channels, filters, 3, **up)
        self.scale = nn.Parameter(torch.randn(filters, 1, 1))

    def forward(self, line, plane, volume):
        return (
            torch.tanh(F.avg_pool1d(self.line(line), 4)),
            F.avg_pool2d(self.plane(plane), 2) * 2,
            F.avg_pool2d(self.groups(plane) * self.scale, 3),
            F.elu(F.avg_pool2d(self.narrow(plane) * self.scale, (2, 5))),
            F.avg_pool3d(self.volume(volume), (1, 2, 2)).amax(1),
            F.selu(F.avg_pool2d(self.up(plane), 2)),
            F.avg_pool2d(self.twice(plane), 4) + self.scale,
            F.avg_pool2d(self.beside(plane), (2, 3)),
            torch.tanh(F.avg_pool3d(self.deep(volume), 2)).amin(1),
        )


batch_size = 6
channels = 12
filters = 20


def get_inputs():
    return [
        torch.randn(batch_size, channels, 301) + 0.5,
        torch.randn(batch_size, channels, 46, 52),
        torch.randn(batch_size, channels, 10, 13, 24) - 0.5,
    ]


def get_init_inputs():
    return [channels, filters]
