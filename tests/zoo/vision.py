"""Blocks of image, signal and volume networks, pooling and resampling of all kinds."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.case import Case, x


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Bottleneck(nn.Module):
    """A strided bottleneck whose shortcut is a convolution."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inside, 2, 1)
        self.conv = nn.Conv2d(2, 2, 3, stride=stride, padding=1)
        self.expand = nn.Conv2d(2, outside, 1)
        self.norm = nn.GroupNorm(2, outside)
        self.downsample = nn.Conv2d(inside, outside, 1, stride=stride) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.conv(F.relu(self.reduce(x))))
        return F.relu(self.norm(self.expand(x)) + identity)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, reduction: int = 2) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        scale = x.mean(dim=(2, 3))
        scale = torch.sigmoid(self.fc2(F.relu(self.fc1(scale)))).view(b, c, 1, 1)
        return x * scale.expand_as(x)


class MBConv(nn.Module):
    def __init__(self, channels: int, expansion: int = 2) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 2, 1), nn.SiLU(), nn.Conv2d(2, wide, 1)
        )
        self.project = nn.Sequential(
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = y * self.squeeze(y).sigmoid()
        return x + self.project(y)


class DepthwiseSeparable(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inside, inside, 3, padding=1, groups=inside)
        self.pointwise = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(self.pointwise(F.relu6(self.depthwise(x))))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 2, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 3, padding=1))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(3, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.one(x), self.three(x), self.pool(x)], dim=1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        x = F.relu(self.middle(self.pool(skip)))
        x = torch.cat((skip, F.relu(self.up(x))), dim=1)
        return torch.sigmoid(self.last(x))


class DenseBlock(nn.Module):
    def __init__(self, channels: int = 3, growth: int = 2, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth),
                nn.ReLU(),
                nn.Conv2d(channels + i * growth, growth, 3, padding=1),
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-1 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.gamma * self.fc2(F.gelu(self.fc1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 3)
        self.conv2 = nn.Conv2d(3, 4, 3)
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class ChannelSpatialAttention(nn.Module):
    """CBAM: a channel gate, then a spatial one from the mean and the maximum of the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(channels, 2), nn.ReLU(), nn.Linear(2, channels))
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3)))
        x = x * torch.sigmoid(gate)[..., None, None]
        maps = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], dim=1)
        return x * torch.sigmoid(self.conv(maps))


class ChannelShuffle(nn.Module):
    """ShuffleNet's unit: half of the channels go through, then the channels are interleaved."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(3, 3, 3, padding=1, groups=3)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        out = torch.cat((left, F.relu(self.branch(right))), dim=1)
        n, c, h, w = out.shape
        return out.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(torch.tanh(self.conv2(torch.relu(self.conv1(x)))))


class PyramidPooling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        levels = [F.adaptive_avg_pool2d(x, s).flatten(1) for s in (1, 2, 3)]
        return torch.cat(levels, dim=1).relu()


class FeaturePyramid(nn.Module):
    """A coarse map is resized to that of a finer one and added."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Conv2d(3, 4, 1)
        self.coarse = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> list[Tensor]:
        coarse = F.relu(self.coarse(x))
        fine = self.fine(x)
        up = F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        return [F.relu(fine + up), coarse]


class Resampled(nn.Module):
    def __init__(self, mode: str, corners: bool | None = None) -> None:
        super().__init__()
        self.mode, self.corners = mode, corners

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x * 2.0, scale_factor=2, mode=self.mode, align_corners=self.corners)
        return torch.sigmoid(x)


class PoolAnd(nn.Module):
    """A pool between two maps, so that there is something to fuse around it."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.pool(F.silu(x) + 0.5))


class GlobalPools(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean, largest = x.mean(dim=[2, 3]), x.amax(dim=(2, 3))
        generalised = x.clamp(min=1e-6).pow(3.0).mean((-2, -1)).pow(1 / 3.0)
        return torch.cat([mean, largest, generalised], dim=1)


class ConvAnd(nn.Module):
    def __init__(self, conv: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = conv, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x)) * 0.5


class WaveNetLayer(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.filter = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.dilation = dilation

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        padded = F.pad(x, (self.dilation, 0))
        gated = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        out = self.residual(gated)
        return x + out, out


class ConvAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(3, 1, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encoder(x)
        image = self.decoder(code)
        return {"code": code, "image": image, "loss": F.mse_loss(image, x)}


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 6, 1)
        self.bn1 = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, points: Tensor) -> Tensor:
        features = F.relu(self.bn1(self.conv1(points.transpose(1, 2))))
        return self.fc(torch.max(features, 2)[0])


POOLS = {
    "max_1d": (nn.MaxPool1d(2), (3, 8)),
    "max_2d": (nn.MaxPool2d(3, stride=2, padding=1), (3, 6, 6)),
    "max_3d": (nn.MaxPool3d(2), (2, 4, 4, 4)),
    "average_1d": (nn.AvgPool1d(2), (3, 8)),
    "average_2d": (nn.AvgPool2d(2, ceil_mode=True), (3, 5, 5)),
    "average_3d": (nn.AvgPool3d(2), (2, 4, 4, 4)),
    "adaptive_average_1d": (nn.AdaptiveAvgPool1d(2), (3, 8)),
    "adaptive_average_2d": (nn.AdaptiveAvgPool2d((2, None)), (3, 6, 6)),
    "adaptive_average_to_one": (nn.AdaptiveAvgPool2d(1), (3, 6, 6)),
    "adaptive_max_2d": (nn.AdaptiveMaxPool2d(2), (3, 6, 6)),
    "power_2d": (nn.LPPool2d(2, 2), (3, 6, 6)),
}

CASES = [
    Case("residual_block", lambda: ResidualBlock(3), x(3, 5, 5), mode_matters=True),
    Case("residual_block_eval", lambda: ResidualBlock(3), x(3, 5, 5), mode="eval",
         mode_matters=True),
    Case("bottleneck", lambda: Bottleneck(4, 4), x(4, 4, 4)),
    Case("bottleneck_strided", lambda: Bottleneck(3, 4, 2), x(3, 6, 6)),
    Case("squeeze_excite", lambda: SqueezeExcite(4), x(4, 3, 3)),
    Case("mbconv", lambda: MBConv(3), x(3, 4, 4), mode_matters=True),
    Case("mbconv_eval", lambda: MBConv(3), x(3, 4, 4), mode="eval", mode_matters=True),
    Case("depthwise_separable", lambda: DepthwiseSeparable(3, 4), x(3, 5, 5)),
    Case("inception", Inception, x(3, 5, 5)),
    Case("unet", UNet, x(2, 6, 6)),
    Case("dense_block", DenseBlock, x(3, 4, 4), mode_matters=True),
    Case("convnext_block", lambda: ConvNeXtBlock(4), x(4, 5, 5)),
    Case("lenet", LeNet, x(1, 12, 12)),
    Case("channel_spatial_attention", lambda: ChannelSpatialAttention(4), x(4, 5, 5)),
    Case("channel_shuffle", ChannelShuffle, x(6, 4, 4)),
    Case("super_resolution", SuperResolution, x(1, 4, 4)),
    Case("pyramid_pooling", PyramidPooling, x(3, 6, 6)),
    Case("feature_pyramid", FeaturePyramid, x(3, 6, 6)),
    Case("upsample_nearest", lambda: Resampled("nearest"), x(2, 3, 3)),
    Case("upsample_bilinear", lambda: Resampled("bilinear", False), x(2, 3, 3)),
    Case("upsample_bicubic_corners", lambda: Resampled("bicubic", True), x(2, 4, 4)),
    Case("upsample_linear", lambda: Resampled("linear", False), x(2, 4)),
    Case("global_pools", GlobalPools, x(3, 4, 4)),
    Case("wavenet_layer", lambda: WaveNetLayer(3, 2), x(3, 9)),
    Case("conv_autoencoder", ConvAutoencoder, x(1, 6, 6)),
    Case("point_net", PointNet, x(7, 3), mode_matters=True),
    Case("conv_1d", lambda: ConvAnd(nn.Conv1d(3, 4, 3, padding=1), nn.GELU()), x(3, 8)),
    Case("conv_2d_dilated",
         lambda: ConvAnd(nn.Conv2d(3, 4, 3, dilation=2, padding="same"), nn.ELU()), x(3, 6, 6)),
    Case("conv_2d_reflect",
         lambda: ConvAnd(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Mish()),
         x(3, 5, 5)),
    Case("conv_2d_grouped", lambda: ConvAnd(nn.Conv2d(4, 6, 3, groups=2), nn.SiLU()), x(4, 5, 5)),
    Case("conv_3d", lambda: ConvAnd(nn.Conv3d(2, 3, 3, padding=1), nn.Softplus()), x(2, 4, 4, 4)),
    Case("conv_transpose_1d",
         lambda: ConvAnd(nn.ConvTranspose1d(3, 2, 3, stride=2), nn.Tanh()), x(3, 5)),
    Case("conv_transpose_2d",
         lambda: ConvAnd(nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1), nn.LeakyReLU(0.2)),
         x(3, 4, 4)),
    Case("conv_transpose_3d",
         lambda: ConvAnd(nn.ConvTranspose3d(2, 3, 2, stride=2), nn.Hardtanh()), x(2, 3, 3, 3)),
    Case("pad_and_crop", lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ReLU(),
                                               nn.ZeroPad2d(-1), nn.ConstantPad2d(1, 0.5)),
         x(2, 4, 4)),
    *(Case(f"pool_{name}", lambda p=p: PoolAnd(copy.deepcopy(p)), x(*shape))
      for name, (p, shape) in POOLS.items()),
]  # fmt: skip
