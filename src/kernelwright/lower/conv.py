"""How the tiles of a generated convolution are chosen: its form in, ranked tiles out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelwright.plan import Buffer, ConvForm


@dataclass(frozen=True)
class ConvConfig:
    """What one call of the epilogue is given, and the constants of the kernel."""

    channels: int
    depth: int
    height: int
    width: int
    pitch: int
    threads: int
    constants: tuple[tuple[str, int], ...]
    why: str

    def time(self, batch: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Needs:
    """What an epilogue wants to see together, and whether it can work with a tile."""

    channels_together: int
    multiple: tuple[int, int, int]
    fits: Callable[[ConvConfig], str]


def tiles(form: ConvForm, loop: str, needs: Needs) -> list[ConvConfig]:
    found = []
    for shape in ((1, 8, 16), (1, 16, 16), (4, 4, 8), (6, 6, 6), (1, 1, 128)):
        box = [math.ceil(n / m) * m for n, m in zip(shape, needs.multiple, strict=True)]
        depth, height, width = box
        channels = 8 if needs.channels_together == 1 else math.ceil(needs.channels_together / 8) * 8
        pitch = depth * height * width + 4
        threads = 32 if needs.channels_together == 1 else 128
        constants = (
            ("kTileChannels", channels),
            ("kTileD", depth),
            ("kTileH", height),
            ("kTileW", width),
            ("kTilePitch", pitch),
            ("kEpilogueThreads", threads),
        )
        config = ConvConfig(channels, depth, height, width, pitch, threads, constants, "a stand-in")
        if not needs.fits(config):
            found.append(config)
    return found


def room(form: ConvForm, config: ConvConfig, loop: str) -> tuple[Buffer, ...]:
    return (
        Buffer("packed_weight", (4 * form.cout * form.cin * form.taps,), torch.uint8),
        Buffer("weight_scales", (8 * form.cout,), torch.uint8),
    )
