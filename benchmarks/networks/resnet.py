"""ResNets: residual stages of basic blocks (18) or bottlenecks (50), with BatchNorm."""

import torch
from torch import nn

VARIANTS = {
    "resnet18": dict(
        batch=32, image=224, stages=(2, 2, 2, 2), width=64, bottleneck=False, classes=1000
    ),
    "resnet50": dict(
        batch=32, image=224, stages=(3, 4, 6, 3), width=64, bottleneck=True, classes=1000
    ),
    "small": dict(batch=3, image=16, stages=(1, 1), width=4, bottleneck=False, classes=5),
    "small_bottleneck": dict(batch=3, image=16, stages=(2,), width=4, bottleneck=True, classes=5),
}
CHOSEN = "resnet18"
sizes = VARIANTS[CHOSEN]


def convolution(channels, wide, kernel, stride=1):
    return [
        nn.Conv2d(channels, wide, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(wide),
    ]


class Residual(nn.Module):
    def __init__(self, channels, width, stride, bottleneck):
        super().__init__()
        if bottleneck:
            out = 4 * width
            steps = [*convolution(channels, width, 1), nn.ReLU(inplace=True)]
            steps += [*convolution(width, width, 3, stride), nn.ReLU(inplace=True)]
            steps += convolution(width, out, 1)
        else:
            out = width
            steps = [*convolution(channels, width, 3, stride), nn.ReLU(inplace=True)]
            steps += convolution(width, out, 3)
        self.body = nn.Sequential(*steps)
        self.shortcut = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(*convolution(channels, out, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        kept = x if self.shortcut is None else self.shortcut(x)
        out = self.body(x)
        out += kept
        return self.relu(out)


class Model(nn.Module):
    def __init__(self, stages, width, bottleneck, classes):
        super().__init__()
        self.stem = nn.Sequential(
            *convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks, channels = [], width
        for i, count in enumerate(stages):
            for j in range(count):
                stride = 2 if i and not j else 1
                blocks.append(Residual(channels, width * 2**i, stride, bottleneck))
                channels = width * 2**i * (4 if bottleneck else 1)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def get_inputs():
    return [torch.randn(sizes["batch"], 3, sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("stages", "width", "bottleneck", "classes")]
