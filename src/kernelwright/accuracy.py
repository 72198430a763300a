"""What the library's convolutions are accurate to: which accuracy is owed. Data alone.

The contract is eager's own error. PyTorch allows TF32 in float32 convolutions, but the library
decides by shape whether it takes it; gauge.py finds out on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# TF32 rounds to 11 bits: 3e-4 for numbers of both signs. Float32 sums stay below 5e-6.
TF32_ERROR = 3e-5


@dataclass(frozen=True)
class Accuracy:
    """Relative rms errors against float64; None: not measured.

    `eager` is the smallest of the user's own convolution over the batches that were tried, from a
    batch of `fewest` on (below, it is that of float32); `channels_last` is the largest of this one
    in that order.
    """

    eager: float | None = None
    channels_last: float | None = None
    fewest: int = 1

    @property
    def owed(self) -> str:
        """`float32`, or `tf32` where eager itself is no better, from a batch of `fewest` on."""
        return "tf32" if is_tf32(self.eager) else "float32"

    def allows(self, error: float | None) -> bool:
        """Whether a way of the library with this error is as accurate as eager, where it holds."""
        return error is not None and (is_tf32(self.eager) or not is_tf32(error))

    def __str__(self) -> str:
        if self.eager is None:
            return "eager's own error is not known here, so float32's accuracy is owed"
        name = "TF32" if self.owed == "tf32" else "float32"
        owed = f"eager's own error is {self.eager:.1e} here, so {name}'s accuracy is owed"
        if self.fewest == 1:
            return owed
        return f"{owed}; below a batch of {self.fewest} it is float32's, and the library runs"


Accuracies = Mapping[str, Accuracy]
UNKNOWN = Accuracy()


def is_tf32(error: float | None) -> bool:
    return error is not None and error > TF32_ERROR
