"""Windows of a convolution's results in the registers of four threads, run on the CPU.

The header itself (kernels/conv_windows.cuh) with a thread for each of four neighbours, which meet
where they shuffle. Each has its sums of every tile of a configuration that the planner chooses;
around the output they are large, and where no halo is they are NaN. Every window must come out of
exactly one tile.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_host import CXX, KERNELS
from convolved import Conv

pytestmark = pytest.mark.skipif(
    shutil.which(CXX) is None, reason=f"the C++ compiler {CXX} is not here"
)
FLAGS = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-Wno-unknown-pragmas"]

DRIVER = """
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
struct float2 {
  float x, y;
};

std::barrier<> meeting(4);
float told[4];
thread_local int own;

float __shfl_sync(unsigned, float x, int from, int) {
  told[own] = x;
  meeting.arrive_and_wait();
  const float found = told[from % 4];
  meeting.arrive_and_wait();
  return found;
}
float __shfl_xor_sync(unsigned all, float x, int apart) {
  return __shfl_sync(all, x, own ^ apart, 4);
}

#include "conv_windows.cuh"

struct Config {
CONSTANTS
};
using S = kw::ConvShape<Config>;

struct Sums {
  float d[S::kBlocksZ * S::kBlocksY * S::kBlocksX * S::kChannels / 64][S::kRows * 4];
  int group;
  int wide() const { return S::kSplitX > 1 ? group * S::kAdvanceX : 0; }
  int tall() const { return S::kSplitY > 1 ? group * S::kAdvanceY : 0; }
  int deep() const { return S::kSplitZ > 1 ? group * S::kAdvanceZ : 0; }
};
using Windows = kw::ConvWindows<S, Sums>;

float result(const float* results, int z, int y, int x) {
  const bool inside = unsigned(z) < S::kOutD && unsigned(y) < S::kOutH && unsigned(x) < S::kOutW;
  return inside ? results[(z * S::kOutH + y) * S::kOutW + x] : 1e9f;
}

// One of four threads of one warpgroup, in one tile.
void run(const kw::ConvItem& item, int group, const float* results, float* out, int* times) {
  static float line[S::kWindowsX];
  static Sums of_threads[4];
  Sums& sums = of_threads[own];
  sums.group = group;
  const int first[] = {item.z + sums.deep(), item.y + sums.tall(), item.x + sums.wide()};
  for (int z = 0; z < S::kBlocksZ; ++z)
  for (int y = 0; y < S::kBlocksY * (S::kAlongX ? 1 : S::kRows); ++y)
  for (int n = 0; n < S::kBlocksX * (S::kAlongX ? S::kRows : 1) * 4 * Windows::kHigh; ++n)
  for (int odd = 0; odd < 2; ++odd) {
    const int eight = n / (4 * Windows::kHigh), x = eight * 8 + 2 * own + odd;
    const auto pair = Windows::pair_of(n / 2 % Windows::kHigh, n % 2, z, y, eight);
    const bool known = z < S::kDeep && y < S::kTall && x < S::kWide;
    const float sum = result(results, first[0] + z, first[1] + y, first[2] + x);
    sums.d[pair.part][pair.at + odd] = known ? sum : NAN;
  }
  Windows windows{sums, own};
  if constexpr (S::kEdges) windows.leave_out_edges(item);
  float smallest = INFINITY;
  for (int z = 0; z < S::kWindowsZ; ++z)
  for (int y = 0; y < S::kWindowsY; ++y) {
    windows.put<true>(line, Windows::kHigh - 1, 1, z, y, smallest);
    meeting.arrive_and_wait();
    for (int x = own; x < S::kWindowsX; x += 4) {
      const int seen_z = (first[0] + S::kWindowPadD) / S::kWindowStepD + z;
      const int seen_y = (first[1] + S::kWindowPadH) / S::kWindowStepH + y;
      const int seen_x = (first[2] + S::kWindowPadW) / S::kWindowStepW + x;
      if (seen_z >= S::kSeenD || seen_y >= S::kSeenH || seen_x >= S::kSeenW) continue;
      const int at = (seen_z * S::kSeenH + seen_y) * S::kSeenW + seen_x;
      out[at] = line[x];
      ++times[at];
    }
    meeting.arrive_and_wait();
  }
}

extern "C" void all_tiles(const float* results, float* out, int* times) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([=] {
      own = thread;
      for (int64_t i = 0; i < S::kPlaceTiles; ++i) {
        const auto item = kw::ConvItem::at(i * S::kChannelTiles, S{});
        for (int group = 0; group < 2 / S::kSplitC; ++group) {
          run(item, group, results, out, times);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}
"""


def conv(window: int, step: int, before: int = 0, **more: Any) -> Conv:
    how = {"largest": (1, window, window), "apart": (1, step, step), "before": (0, before, before)}
    return replace(Conv(8, 64, (37, 53), (3, 3)), **(how | more))


CONVS = {
    "three by two": conv(3, 2),
    "stem": conv(3, 2, 1),
    "even": conv(3, 2, 1, size=(38, 54)),
    "three by one": conv(3, 1, 1),
    "two by one": conv(2, 1),
    "four by one": conv(4, 1, 2),
    "four by two": conv(4, 2, 1),
    "five by one": conv(5, 1, 2),
    "six by four": conv(6, 4, 1, largest=(1, 3, 6), apart=(1, 2, 4)),
    "nine by one": conv(9, 1, 4),
    "down": replace(conv(3, 2), largest=(1, 3, 1), apart=(1, 2, 1), before=(0, 1, 0)),
    "beside": conv(4, 4, apart=None),
    "beside, padded": conv(2, 2, 1),
    "high": conv(3, 2, 1, cout=128, loop="rounded"),
    "side by side": conv(3, 2, 1, where=(("kSplitX", 2),)),
    "along": conv(3, 2, 1, size=(20, 300), where=(("kAlongX", 1),)),
    "line": replace(
        Conv(16, 64, (300,), (5,)), largest=(1, 1, 3), apart=(1, 1, 2), before=(0, 0, 1)
    ),
    "volume": replace(
        Conv(16, 64, (9, 17, 15), (3, 3, 3)),
        **{"largest": (3, 3, 3), "apart": (2, 2, 2), "before": (1, 1, 1)},
    ),
}


@pytest.mark.parametrize("name", CONVS)
def test_the_largest_of_each_window(name: str, tmp_path: Path) -> None:
    conv = CONVS[name]
    pool = conv.pool
    assert pool is not None
    constants = [f"  static constexpr int {n} = {v};" for n, v in conv.config.constants]
    source, library = tmp_path / "windows.cpp", tmp_path / "windows.so"
    source.write_text(DRIVER.replace("CONSTANTS", "\n".join(constants)))
    command = [CXX, *FLAGS, f"-I{KERNELS}", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = torch.randn(conv.out_size)
    results.view(-1)[:: results.numel() // 5] = torch.nan
    out, times = torch.full(pool.count, torch.nan), torch.zeros(pool.count, dtype=torch.int32)
    tensors = (results, out, times)
    ctypes.CDLL(str(library)).all_tiles(*(ctypes.c_void_p(t.data_ptr()) for t in tensors))
    assert (times == 1).all()
    wanted = F.max_pool3d(results[None], pool.window, pool.step, pool.before)[0]
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)
