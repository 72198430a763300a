"""Where an act takes place: on which module of which process."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Here:
    """`wide` for the oracle, which runs in float64 whatever it is given."""

    device: torch.device
    wide: bool = False

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
