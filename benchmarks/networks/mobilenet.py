"""Depthwise separable convolutions (MobileNet), or inverted bottlenecks with squeeze-excitation."""

import torch
from torch import nn

VARIANTS = {
    "mobilenet": dict(batch=32, image=224, width=32, stages=(1, 2, 2, 6, 2), excite=False),
    "mbconv": dict(batch=32, image=112, width=32, stages=(1, 2, 3), excite=True),
    "small": dict(batch=3, image=8, width=4, stages=(1, 1), excite=False),
    "small_mbconv": dict(batch=3, image=8, width=4, stages=(2,), excite=True),
}
CHOSEN = "mobilenet"
sizes = VARIANTS[CHOSEN]


class Separable(nn.Sequential):
    def __init__(self, channels, out, stride):
        super().__init__(
            nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(inplace=True),
            nn.Conv2d(channels, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU6(inplace=True),
        )


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)
        self.silu = nn.SiLU(inplace=True)

    def forward(self, x):
        gate = self.excite(self.silu(self.squeeze(self.pool(x))))
        return x * torch.sigmoid(gate)


class MBConv(nn.Module):
    def __init__(self, channels, out, stride, expand=4):
        super().__init__()
        wide = expand * channels
        self.residual = stride == 1 and channels == out
        self.steps = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide, eps=1e-3, momentum=0.01),
            nn.SiLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide, eps=1e-3, momentum=0.01),
            nn.SiLU(inplace=True),
            SqueezeExcite(wide, max(channels // 4, 1)),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out, eps=1e-3, momentum=0.01),
        )

    def forward(self, x):
        out = self.steps(x)
        return out + x if self.residual else out


class Model(nn.Module):
    def __init__(self, width, stages, excite):
        super().__init__()
        block = MBConv if excite else Separable
        steps = [nn.Conv2d(3, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width)]
        steps.append(nn.SiLU(inplace=True) if excite else nn.ReLU6(inplace=True))
        channels = width
        for i, count in enumerate(stages):
            for j in range(count):
                steps.append(block(channels, width * 2 ** (i + 1), 2 if i and not j else 1))
                channels = width * 2 ** (i + 1)
        self.features = nn.Sequential(*steps)
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))


def get_inputs():
    return [torch.randn(sizes["batch"], 3, sizes["image"], sizes["image"])]


def get_init_inputs():
    return [sizes[name] for name in ("width", "stages", "excite")]
