"""The weights that a convolution of means packs, summed up on the CPU by the header itself."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conv_host import CXX, KERNELS
from convolved import Conv

from kernelwright.plan.convolutions import ConvForm

pytestmark = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"
)
FLAGS = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]

DRIVER = """
#define __device__
#define __forceinline__ inline
#include "conv_taps.cuh"

struct Config {
CONSTANTS
};
using S = kw::ConvShape<Config>;

// [channel][channel of the input][tap], and how many weights in memory each one is made of.
extern "C" void pack(const float* weight, float* out, int* counts) {
  constexpr int kIn = S::kCin / S::kGroups, kOut = S::kCout / S::kGroups;
  for (int c = 0; c < S::kCout; ++c)
  for (int i = 0; i < kIn; ++i)
  for (int tap = 0; tap < S::kTaps; ++tap) {
    const int in = c / kOut * kIn + i;
    *out++ = kw::detail::weight_of<S>(weight, c, in, tap);
    kw::detail::each_weight<S>(c, in, tap, [&](int64_t) { ++*counts; });
    ++counts;
  }
}
"""
UP = {"transposed": True}
CONVS = {
    "plain": Conv(5, 9, (12, 13), (3, 2)),
    "plain, transposed": Conv(6, 8, (12, 13), (3, 2), steps=2, groups=2, **UP),
    "dense": Conv(5, 9, (12, 13), (3, 2), pads=1, mean=(1, 2, 4)),
    "groups": Conv(6, 8, (12, 13), (3, 3), groups=2, mean=(1, 2, 2)),
    "line": Conv(3, 9, (60,), (5,), mean=(1, 1, 3)),
    "volume": Conv(3, 9, (6, 7, 9), (3, 3, 3), mean=(2, 1, 2)),
    "the stride": Conv(5, 9, (12, 13), (3, 4), steps=2, pads=1, extra=1, mean=(1, 2, 2), **UP),
    "two strides": Conv(5, 9, (12, 13), (5, 3), steps=2, mean=(1, 4, 4), **UP),
    "volume, the stride": Conv(
        *(6, 8, (4, 5, 6), (3, 3, 3)), steps=2, pads=1, groups=2, mean=(2, 2, 2), **UP
    ),
}


def packed(form: ConvForm, weight: torch.Tensor) -> torch.Tensor:
    """The same in float64, tap by tap."""
    mean = form.mean
    transposed = mean.transposed if mean else form.transposed
    if transposed:
        weight = weight.unflatten(0, (form.groups, -1)).transpose(1, 2).flatten(0, 1)
    weight = weight.reshape(*weight.shape[:2], *(mean.kernel if mean else form.kernel))
    if mean is None:
        return weight
    made = torch.zeros(*weight.shape[:2], *form.kernel, dtype=torch.float64)
    ranges = [
        [
            range(max(at, 0), min(at + window, taps))
            for at in range(first, first + step * kernel, step)
        ]
        for first, step, window, taps, kernel in zip(
            mean.first, mean.step, mean.window, mean.kernel, form.kernel, strict=True
        )
    ]
    for z, planes in enumerate(ranges[0]):
        for y, rows in enumerate(ranges[1]):
            for x, taps in enumerate(ranges[2]):
                part = weight[:, :, planes][:, :, :, rows][:, :, :, :, taps]
                made[:, :, z, y, x] = part.double().sum((2, 3, 4))
    return made / math.prod(mean.window)


@pytest.mark.parametrize("name", CONVS)
def test_taps_are_sums_of_those_in_memory(name: str, tmp_path: Path) -> None:
    conv = CONVS[name]
    constants = conv.config.constants
    lines = "\n".join(f"  static constexpr int {key} = {value};" for key, value in constants)
    source, library = tmp_path / "taps.cpp", tmp_path / "taps.so"
    source.write_text(DRIVER.replace("CONSTANTS", lines))
    command = [CXX, *FLAGS, f"-I{KERNELS}", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    weight = torch.randn(conv.weight_shape())
    wanted = packed(conv.made, weight)
    out, counts = torch.full(wanted.shape, torch.nan), torch.zeros(wanted.shape, dtype=torch.int32)
    ctypes.CDLL(str(library)).pack(*(ctypes.c_void_p(t.data_ptr()) for t in (weight, out, counts)))
    torch.testing.assert_close(out.double(), wanted.double(), rtol=1e-5, atol=1e-6)
    # Each weight in memory is in as many taps as places of a window meet it at other places of x.
    own = conv.form.stride if conv.transposed else (1, 1, 1)
    times = math.prod(p // s if conv.transposed else p for p, s in zip(conv.mean, own, strict=True))
    assert int(counts.sum()) == weight.numel() * (times if max(conv.mean) > 1 else 1)
