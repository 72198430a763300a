"""VGG: plain convolutions with ReLU, max pooling, and a classifier with dropout."""

import torch
from torch import nn

VARIANTS = {
    "vgg11": dict(batch=16, image=224, stages=(1, 1, 2, 2, 2), width=64, hidden=4096, classes=1000),
    "vgg16": dict(batch=16, image=224, stages=(2, 2, 3, 3, 3), width=64, hidden=4096, classes=1000),
    "small": dict(batch=2, image=16, stages=(1, 2), width=4, hidden=12, classes=5),
}
CHOSEN = "vgg11"
sizes = VARIANTS[CHOSEN]


class Model(nn.Module):
    def __init__(self, image, stages, width, hidden, classes):
        super().__init__()
        steps, channels = [], 3
        for i, count in enumerate(stages):
            wide = min(width * 2**i, 8 * width)
            for _ in range(count):
                steps += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(inplace=True)]
                channels = wide
            steps.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*steps)
        side = image // 2 ** len(stages)
        self.pool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


def get_inputs():
    return [torch.randn(sizes["batch"], 3, sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("image", "stages", "width", "hidden", "classes")]
