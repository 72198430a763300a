"""Products without a model around them: a Kernel to build in, a function of two tensors out.

A matrix product is written as torch.matmul takes it, left [..., rows, depth] times right
[..., depth, columns]; their strides say how they lie. products.cu is compiled once for each Kernel.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernelwright.runtime.products import product_launch

HERE = Path(__file__).parent
SOURCE = HERE / "cuda" / "products.cu"
KERNELS = HERE.parent / "src" / "kernelwright" / "kernels"
NVCC = shutil.which("nvcc") or os.path.join(
    os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc"
)
PLANES = {"SplitFloat": 2, "RoundedFloat": 1, "Float16": 0, "Bfloat16": 0}
DTYPES = {"Float16": torch.float16, "Bfloat16": torch.bfloat16}
STORED = {torch.float32: "float", torch.float16: "kw::half_t", torch.bfloat16: "kw::bfloat16_t"}


@dataclass(frozen=True)
class Kernel:
    """`left` and `right` say which axis of the operand lies along memory: depth or row."""

    loop: str
    columns: int
    left: str = "depth"
    right: str = "depth"
    batched: bool = True
    width: int = 128
    cluster: int = 2
    out: torch.dtype = torch.float32

    @property
    def planes(self) -> int:
        return PLANES[self.loop]

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES.get(self.loop, torch.float32)

    @property
    def macros(self) -> dict[str, object]:
        stage = (128 + self.width) * max(1, self.planes) * 128
        return {
            "LOOP": self.loop,
            "COLUMNS": self.columns,
            "WIDTH": self.width,
            "STAGES": min(6, (200 << 10) // stage),
            "CLUSTER": self.cluster,
            "LANES": self.lanes,
            "OUT": STORED[self.out],
            "BATCHED": str(self.batched).lower(),
            "LEFT": f"k{self.left.title()}",
            "RIGHT": f"k{self.right.title()}",
        }

    @property
    def lanes(self) -> int:
        most = 4 if self.planes else 2
        return next(v for v in (4, 2, 1) if v <= most and self.columns % v == 0)


class Built:
    """The compiled product."""

    def __init__(self, kernel: Kernel, library: Path) -> None:
        self.kernel = kernel
        self.call = ctypes.CDLL(str(library)).launch

    def __call__(
        self,
        left: Tensor,
        right: Tensor,
        *,
        at_once: int = 0,
        halves: tuple[Tensor, Tensor] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """left @ right; `halves` are the frozen ones of the right operand."""
        kernel = self.kernel
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        outer, inner = (1, 1, *batch)[-2:]
        rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        assert columns == kernel.columns and left.dtype == right.dtype == kernel.dtype
        left = left.expand(outer, inner, rows, depth)
        right = right.expand(outer, inner, depth, columns).mT
        if out is None:
            shape = (*batch, rows, columns)
            out = torch.full(shape, torch.nan, dtype=kernel.out, device=left.device)
        held = [*self.halves(left), *(halves or self.halves(right))]
        progress = torch.full((2 + columns // 64 * 2,), -1, dtype=torch.int32, device=left.device)
        processors = torch.cuda.get_device_properties(left.device).multi_processor_count
        streams = not kernel.batched and kernel.right == "depth"
        tile = (kernel.width, kernel.cluster, 8)
        rule = (columns, depth, tile, kernel.planes, streams and depth % 4 == 0, at_once)
        how = product_launch(rows, outer * inner, rule, processors, halves is not None)
        tensors = [left, right, *held, progress, out]
        numbers = [*strides(left), *strides(right), outer, inner, rows, depth]
        numbers += [how.tiles, how.clusters, how.early, int(halves is not None)]
        numbers.append(torch.cuda.current_stream().cuda_stream)
        pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        failed = self.call(pointers, (ctypes.c_int64 * len(numbers))(*numbers))
        assert not failed, f"CUDA error {failed}"
        return out

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Room for the matrices that differ, full of NaN."""
        apart = [n if s else 1 for n, s in zip(x.shape[:2], x.stride()[:2], strict=True)]
        count, (rows, depth) = apart[0] * apart[1], x.shape[2:]
        size = count * -(-rows // 64) * 64 * -(-depth // 64) * 64 * self.kernel.planes
        halves = torch.full((size,), torch.nan, dtype=torch.float16, device=x.device)
        return halves, torch.full((count, rows, 2), torch.nan, device=x.device)


def strides(x: Tensor) -> list[int]:
    """Those of an axis of one do not matter, and may be anything."""
    return [s if n > 1 else 0 for n, s in zip(x.shape[:2], x.stride()[:2], strict=True)] + [
        *x.stride()[2:]
    ]


def build(kernels: Iterable[Kernel], folder: Path) -> dict[Kernel, Built]:
    """All of them, side by side."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        wanted = list(dict.fromkeys(kernels))
        paths = list(pool.map(lambda pair: compiled(pair[1], folder, pair[0]), enumerate(wanted)))
    return {kernel: Built(kernel, path) for kernel, path in zip(wanted, paths, strict=True)}


def compiled(kernel: Kernel, folder: Path, index: int) -> Path:
    path = folder / f"product{index}.so"
    command = [NVCC, "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-shared"]
    command += ["-Xcompiler", "-fPIC", f"-I{KERNELS}", "-o", str(path), str(SOURCE)]
    command += [f"-D{name}={value}" for name, value in kernel.macros.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path
