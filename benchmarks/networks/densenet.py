"""A dense block: every layer reads all the maps before it, joined by cat; then a transition."""

import torch
from torch import nn

VARIANTS = {
    "densenet": dict(batch=16, image=56, layers=6, channels=64, growth=32, dropout=0.0),
    "small": dict(batch=3, image=6, layers=2, channels=4, growth=3, dropout=0.1),
}
CHOSEN = "densenet"
sizes = VARIANTS[CHOSEN]


class Layer(nn.Module):
    def __init__(self, channels, growth, dropout):
        super().__init__()
        self.steps = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, growth, 3, padding=1, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.steps(x)


class Model(nn.Module):
    def __init__(self, layers, channels, growth, dropout):
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(channels + i * growth, growth, dropout) for i in range(layers)
        )
        total = channels + layers * growth
        self.norm = nn.BatchNorm2d(total)
        self.transition = nn.Conv2d(total, total // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2, 2)

    def forward(self, x):
        maps = [x]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, 1)))
        joined = torch.relu(self.norm(torch.cat(maps, 1)))
        return self.pool(self.transition(joined))


def get_inputs():
    return [torch.randn(sizes["batch"], sizes["channels"], sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("layers", "channels", "growth", "dropout")]
