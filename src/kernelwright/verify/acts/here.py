"""Where an act takes place: on which module of which process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Here:
    """`wide` for the oracle, which runs in float64 whatever it is given.

    `make` constructs another instance, under a seed.
    """

    device: torch.device
    wide: bool = False
    make: Callable[[int], nn.Module] | None = None

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
