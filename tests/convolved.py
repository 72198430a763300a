"""Convolutions without a model around them: a Conv to build in, a function of two tensors out.

cuda/conv.cu is compiled once for each Conv, which is a form, a main loop, an epilogue and one of
the configurations that lower/conv.py lists.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from handmade import KERNELS, NVCC, STORED
from torch import Tensor

from kernelwright.lower.conv import ranked
from kernelwright.lower.conv_choice import Needs
from kernelwright.lower.conv_shape import ConvConfig
from kernelwright.plan.averages import mean_of
from kernelwright.plan.convolutions import ConvForm
from kernelwright.plan.walks import Pool, side_by_side
from kernelwright.targets import SM_90

SOURCE = Path(__file__).parent / "cuda" / "conv.cu"
Three = tuple[int, int, int]
LOOPS = {loop.name: loop for loop in SM_90.conv_loops}
CONVOLVE: dict[tuple[bool, int], Callable[..., Tensor]] = {
    (False, 1): F.conv1d,
    (False, 2): F.conv2d,
    (False, 3): F.conv3d,
    (True, 1): F.conv_transpose1d,
    (True, 2): F.conv_transpose2d,
    (True, 3): F.conv_transpose3d,
}


@dataclass(frozen=True)
class Conv:
    """A convolution of `size` places; tuples are along the axes that it has.

    Of the results the `largest` of windows of such extents is taken, which lie side by side or
    `apart`, and begin `before` the first; or the `mean` of such windows. `pick` counts the
    configurations, the best one first; `where` filters them by their constants.
    """

    cin: int
    cout: int
    size: tuple[int, ...]
    window: tuple[int, ...]
    steps: int | tuple[int, ...] = 1
    pads: int | tuple[int, ...] = 0
    dilations: int | tuple[int, ...] = 1
    groups: int = 1
    transposed: bool = False
    extra: int = 0
    loop: str = "split"
    program: str = "Elements<Stored>"
    together: int = 1
    multiple: Three = (1, 1, 1)
    largest: Three = (1, 1, 1)
    apart: Three | None = None
    before: Three = (0, 0, 0)
    mean: Three = (1, 1, 1)
    pick: int = 0
    where: tuple[tuple[str, int], ...] = ()

    def _three(self, numbers: int | tuple[int, ...], one: int) -> Three:
        many = len(self.size)
        given = (numbers,) * many if isinstance(numbers, int) else numbers
        first, second, third = (*(one,) * (3 - many), *given)
        return first, second, third

    @property
    def form(self) -> ConvForm:
        """Of the convolution, whatever is made of its results."""
        sizes = (self.in_size, self.out_size, self.kernel, self.stride, self.padding)
        channels = (self.cin, self.cout, self.groups)
        return ConvForm("x", "weight", 1, *channels, *sizes, self.dilation, self.transposed)

    @property
    def made(self) -> ConvForm:
        """That of the results which are handed over."""
        if max(self.mean) == 1:
            return self.form
        found = mean_of(self.form, self.mean)
        assert found is not None, f"no means of {self}"
        return found

    @property
    def in_size(self) -> Three:
        return self._three(self.size, 1)

    @property
    def kernel(self) -> Three:
        return self._three(self.window, 1)

    @property
    def stride(self) -> Three:
        return self._three(self.steps, 1)

    @property
    def pool(self) -> Pool | None:
        if max(self.largest) == 1:
            return None
        if self.apart is None:
            return side_by_side(self.largest, self.out_size)
        counts = [
            (n + 2 * before - size) // step + 1
            for n, size, step, before in zip(
                self.out_size, self.largest, self.apart, self.before, strict=True
            )
        ]
        return Pool(self.largest, self.apart, self.before, (counts[0], counts[1], counts[2]))

    @property
    def seen_size(self) -> tuple[int, ...]:
        """Along the axes that there are, what is stored."""
        seen = self.pool.count if self.pool else self.made.out_size
        return seen[3 - len(self.size) :]

    @property
    def padding(self) -> Three:
        return self._three(self.pads, 0)

    @property
    def dilation(self) -> Three:
        return self._three(self.dilations, 1)

    @property
    def out_size(self) -> Three:
        extra = self._three(self.extra, 0)
        found = []
        for i, k, s, p, d, e in zip(
            self.in_size, self.kernel, self.stride, self.padding, self.dilation, extra, strict=True
        ):
            reach = d * (k - 1) + 1
            found.append(
                (i - 1) * s - 2 * p + reach + e if self.transposed else (i + 2 * p - reach) // s + 1
            )
        return found[0], found[1], found[2]

    @property
    def slices(self) -> int:
        """Those that a channel of a sample falls into."""
        tile = self.config.depth, self.config.height, self.config.width
        return math.prod(-(-n // t) for n, t in zip(self.made.out_size, tile, strict=True))

    @property
    def dtype(self) -> torch.dtype:
        return LOOPS[self.loop].dtype

    @cached_property
    def config(self) -> ConvConfig:
        stores = self.program.startswith(("Elements", "Stored"))
        early = 6 if self.program.endswith("Moments") else 0
        across = 14 if self.program == "LogSumExp" else 0
        needs = Needs(
            *(self.cout if across else self.together, self.multiple, self.pool),
            *(stores, 2, early, across),
        )
        found = [c for c in ranked(self.made, LOOPS[self.loop], needs) if self._is_asked_for(c)]
        assert found, f"no configuration for {self}"
        return found[min(self.pick, len(found) - 1)]

    def _is_asked_for(self, config: ConvConfig) -> bool:
        constants = dict(config.constants)
        return all(constants[name] == value for name, value in self.where)

    def weight_shape(self) -> tuple[int, ...]:
        inner = (
            (self.cin, self.cout // self.groups)
            if self.transposed
            else (self.cout, self.cin // self.groups)
        )
        return (*inner, *self.window)

    def reference(self, x: Tensor, weight: Tensor) -> Tensor:
        options = {"stride": self.steps, "padding": self.pads, "dilation": self.dilations}
        if self.transposed:
            options["output_padding"] = self.extra
        function = CONVOLVE[self.transposed, len(self.size)]
        found = function(x, weight, groups=self.groups, **options)
        if self.pool is not None:
            pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(self.size) - 1]
            axes = (self.pool.window, self.pool.step, self.pool.before)
            found = pool(found, *(n[3 - len(self.size) :] for n in axes))
        if max(self.mean) > 1:
            means = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(self.size) - 1]
            found = means(found, self.mean[3 - len(self.size) :])
        return found


class Built:
    """The compiled convolution."""

    def __init__(self, conv: Conv, library: Path) -> None:
        self.conv = conv
        self.call = ctypes.CDLL(str(library)).launch

    def room(self, device: torch.device) -> tuple[Tensor, Tensor]:
        config = self.conv.config
        return tuple(  # type: ignore[return-value]
            torch.full((n,), 0xFF, dtype=torch.uint8, device=device)
            for n in (config.packed_bytes, config.scale_bytes)
        )

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        conv = self.conv
        assert x.dtype == weight.dtype == conv.dtype and x.is_contiguous()
        if out is None:
            shape = (x.shape[0], conv.cout, *conv.seen_size)
            out = torch.full(shape, torch.nan, dtype=conv.dtype, device=x.device)
        moments = (2, x.shape[0], conv.cout, conv.slices)
        self.moments = torch.full(moments, torch.nan, device=x.device)
        tensors = [x, weight, *self.room(x.device), out, x if bias is None else bias, self.moments]
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        self.repeat = lambda: self.call(
            pointers,
            ctypes.c_int64(x.shape[0]),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        self.held = tensors
        failed = self.repeat()
        assert not failed, f"CUDA error {failed}"
        return out


def build(convs: Iterable[Conv], folder: Path) -> dict[Conv, Built]:
    """All of them, side by side."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        wanted = list(dict.fromkeys(convs))
        paths = list(pool.map(lambda pair: compiled(pair[1], folder, pair[0]), enumerate(wanted)))
    return {conv: Built(conv, path) for conv, path in zip(wanted, paths, strict=True)}


def compiled(conv: Conv, folder: Path, index: int) -> Path:
    """The library; a spill or a serialised product is an error."""
    path = folder / f"conv{index}.so"
    config = folder / f"conv{index}.h"
    lines = [f"  static constexpr int {name} = {value};" for name, value in conv.config.constants]
    config.write_text("\n".join(["struct Config {", *lines, "};\n"]))
    command = [NVCC, "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-shared"]
    command += ["-Xcompiler", "-fPIC", "-Xptxas", "-v", f"-I{KERNELS}", f'-DCONFIG="{config}"']
    command += [f"-DLOOP={LOOPS[conv.loop].symbol}", f"-DPROGRAM={conv.program}"]
    command += [f"-DOUT={STORED[conv.dtype]}", "-o", str(path), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "serializ" not in done.stderr, done.stderr
    spilled = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert all(int(n) == 0 for n in spilled), f"{conv}\n{done.stderr}"
    return path
