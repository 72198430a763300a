"""The library's convolutions in both orders of memory: their times, their errors against float64.

    PYTHONPATH=src python3 benchmarks/library_convolutions.py

What the cost model of targets/ (LibraryConvolutions) stands on. NCHW and channels_last have their
operands and results in that order, float32 with TF32 allowed, as by default; `copy` is torch's own
copy of the operand into the other order. Errors are relative rms errors (gauge.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from measuring import arguments, kernel_clock, published
from sheet import Sheet

from kernelwright.gauge import CHANNELS_LAST, relative_error
from kernelwright.interpret import resolve

ROUNDS = 15
COLUMNS = ("convolution", "NCHW ms", "error", "channels_last ms", "error", "copy ms")


@dataclass(frozen=True)
class Convolution:
    """`kind` is conv or conv_transpose; kernel, stride and padding are those of every axis."""

    kind: str
    batch: int
    inside: int
    outside: int
    space: tuple[int, ...]
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def target(self) -> str:
        overload = "input" if self.kind == "conv_transpose" else "default"
        return f"torch.ops.aten.{self.kind}{len(self.space)}d.{overload}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        sides = (self.outside, self.inside // self.groups)
        if self.kind == "conv_transpose":
            sides = (self.inside, self.outside // self.groups)
        taps = (self.kernel,) * len(self.space)
        return [(self.batch, self.inside, *self.space), (*sides, *taps)]

    @property
    def settings(self) -> list[Any]:
        each = [[n] * len(self.space) for n in (self.stride, self.padding)]
        if self.kind == "conv_transpose":
            return [*each, [0] * len(self.space), self.groups]
        return [*each, [1] * len(self.space), self.groups]

    def __str__(self) -> str:
        space = " x ".join(map(str, self.space))
        more = f", stride {self.stride}" * (self.stride > 1) + f", {self.groups} groups" * (
            self.groups > 1
        )
        kind = "transposed " * (self.kind == "conv_transpose")
        sizes = f"{self.batch} x {self.inside} to {self.outside}, {space}"
        return f"{kind}{sizes}, kernel {self.kernel}{more}"


def _plain(*sizes: Any, **more: int) -> Convolution:
    return Convolution("conv", *sizes, **more)


def _transposed(*sizes: Any, **more: int) -> Convolution:
    return Convolution("conv_transpose", *sizes, **more)


ALL = (
    _plain(128, 3, 64, (128, 128), 3, padding=1),
    _plain(128, 8, 64, (256, 256), 3),
    _plain(128, 8, 64, (128, 128), 3),
    _plain(64, 16, 64, (128, 128), 3, padding=1),
    _plain(64, 32, 64, (128, 128), 3, padding=1),
    _plain(128, 64, 128, (128, 128), 3),
    _plain(64, 64, 64, (64, 64), 3, padding=1),
    _plain(64, 128, 128, (32, 32), 3, padding=1),
    _plain(32, 256, 256, (14, 14), 3, padding=1),
    _plain(32, 512, 512, (7, 7), 3, padding=1),
    _plain(32, 64, 256, (56, 56), 1),
    _plain(32, 1024, 256, (14, 14), 1),
    _plain(32, 3, 64, (224, 224), 7, stride=2, padding=3),
    _plain(32, 64, 128, (56, 56), 3, stride=2, padding=1),
    _plain(64, 24, 48, (100, 100), 3, padding=1),
    _plain(64, 32, 64, (128, 128), 5, padding=2),
    _plain(128, 16, 16, (64, 64), 3, padding=1),
    _plain(64, 64, 128, (64, 64), 3, padding=1, groups=8),
    _plain(64, 128, 128, (64, 64), 3, padding=1, groups=32),
    _plain(64, 64, 64, (128, 128), 3, padding=1, groups=64),
    _plain(64, 256, 256, (32, 32), 5, padding=2, groups=256),
    _plain(16, 3, 32, (32, 64, 64), 3),
    _plain(16, 16, 32, (32, 32, 32), 3, padding=1),
    _plain(32, 32, 64, (16, 32, 32), 3, padding=1),
    _plain(16, 64, 128, (16, 32, 32), 3, padding=1),
    _plain(16, 32, 64, (16, 32, 32), 3, padding=1, groups=4),
    _plain(16, 32, 32, (24, 48, 48), 3, padding=1, groups=32),
    _transposed(64, 32, 64, (64, 64), 3, padding=1),
    _transposed(64, 64, 64, (64, 64), 4, stride=2, padding=1),
    _transposed(32, 64, 128, (64, 64), 3, stride=2, padding=1),
    _transposed(64, 16, 16, (64, 64), 3, groups=16),
    _transposed(12, 24, 48, (28, 28, 28), 5, stride=2, padding=2),
    _transposed(16, 32, 64, (16, 32, 32), 3, stride=2, padding=1),
    _transposed(16, 32, 16, (24, 24, 24), 3, padding=1),
)


def milliseconds(run: Callable[[], Any], device: torch.device) -> float:
    """The median of single runs, on the GPU alone."""
    clock = kernel_clock(device)
    for _ in range(3):
        run()
    readings = [clock.time(run) for _ in range(ROUNDS)]
    clock.finish()
    return statistics.median(reading.device_ms() for reading in readings)


def measured(convolution: Convolution, device: torch.device) -> dict[str, Any]:
    function = resolve(convolution.target)
    x, w = (torch.randn(shape, device=device) for shape in convolution.shapes)
    last = CHANNELS_LAST[x.dim()]

    def run(x: torch.Tensor, w: torch.Tensor) -> float:
        return milliseconds(lambda: function(x, w, None, *convolution.settings), device)

    def error(order: torch.memory_format | None) -> float | None:
        given = (convolution.target, convolution.shapes, convolution.settings)
        return relative_error(*given, order, device)

    turned = [t.contiguous(memory_format=last) for t in (x, w)]
    return {
        **asdict(convolution),
        "first_ms": run(x, w),
        "first_error": error(None),
        "last_ms": run(*turned),
        "last_error": error(last),
        "copy_ms": milliseconds(lambda: x.contiguous(memory_format=last), device),
    }


def main() -> None:
    options = arguments(__doc__, "library-convolutions", ("highest",)).parse_args()
    device = torch.device("cuda", 0)
    sheet = Sheet("The library's convolutions, float32, TF32 allowed", COLUMNS)
    with published(options, device, "Library convolutions", sheet), torch.no_grad():
        for convolution in ALL:
            found = measured(convolution, device)
            row = [str(convolution)]
            for order in ("first", "last"):
                error = found[f"{order}_error"]
                row += [f"{found[f'{order}_ms']:.3f}", "-" if error is None else f"{error:.0e}"]
            sheet.add([*row, f"{found['copy_ms']:.3f}"], found)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
