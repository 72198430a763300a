// Configurations of each template, for check.cu and the tests.
#pragma once

#include <cuda_runtime.h>

#include "check_attention.cuh"
#include "check_convs.cuh"
#include "check_epilogues.cuh"
#include "check_programs.cuh"
#include "dropout.cuh"
#include "few_rows.cuh"
#include "gemm_sm90.cuh"
#include "half.cuh"
#include "in_memory.cuh"
#include "launch.cuh"
#include "pictures.cuh"
#include "pointwise.cuh"
#include "ragged.cuh"
#include "resident.cuh"
#include "spread.cuh"
#include "spread_strided.cuh"
#include "streaming.cuh"
#include "strided.cuh"
#include "thin_sm90.cuh"
#include "turned.cuh"
#include "windows.cuh"

namespace kw::check {

struct Grid {
  static constexpr int kVec = 4;
  static constexpr int kThreads = 256;
  static constexpr int kChunks = 4;
  static constexpr bool kFlat = false;
};

struct SingleLanes {
  static constexpr int kVec = 1;
  static constexpr int kThreads = 256;
  static constexpr int kChunks = 4;
  static constexpr bool kFlat = true;
};

// Half a warp per row, sixteen rows per block; without segments kTeams is one.
struct Warps {
  static constexpr int kVec = 4;
  static constexpr int kLanes = 16;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 16;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 8;
};

// Four teams of eight lanes share a row, one segment each at a time.
struct Teams {
  static constexpr int kVec = 1;
  static constexpr int kLanes = 8;
  static constexpr int kTeams = 4;
  static constexpr int kRows = 8;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

// A block for each row of 512 segments of 16.
struct Groups {
  static constexpr int kVec = 4;
  static constexpr int kLanes = 4;
  static constexpr int kTeams = 64;
  static constexpr int kRows = 1;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 4;
};

// Eight blocks share a row of more than 16384 elements.
struct Block {
  static constexpr int kVec = 4;
  static constexpr int kThreads = 1024;
  static constexpr int kCluster = 8;
  static constexpr int kAlone = 16384;
};

// All of 132 multiprocessors share two rows.
struct Everywhere : Block {
  static constexpr int kShort = 1 << 17;
  static constexpr int kParts = 132;
};

struct Columns {
  static constexpr int kVec = 1;
  static constexpr int kWidth = 8;
  static constexpr int kDepth = 8;
  static constexpr int kThreads = 64;
};

// A warp turns 16 channels of 32 places, or three of 128.
template <int kWide, int kWarp>
struct Turning {
  static constexpr int kDown = 4;
  static constexpr int kAcross = kWide;
  static constexpr int kWarpAcross = kWarp;
  static constexpr int kThreads = 256;
};

struct HighColumns : Columns {
  static constexpr int kShort = 4096;
  static constexpr int kParts = 132;
};

// Vectors of places, of which the first lies at the end of its own.
struct Boxes {
  static constexpr int kVec = 4;
  static constexpr int kPhase = 3;
  static constexpr int kThreads = 256;
};

struct WholeImages {
  static constexpr int kVec = 4;
  static constexpr int kPhase = 0;
  static constexpr int kAtOnce = 8;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 8;
};

// Tiles of a product; a thread has one, two or four neighbouring columns.
template <int kWidth, int kRing, int kBlocks, int kLanes>
struct Tiles {
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = kWidth;
  static constexpr int kStages = kRing;
  static constexpr int kCluster = kBlocks;
  static constexpr int kBand = 8;
  static constexpr int kVec = kLanes;
  static constexpr int kDepth = 0;  // any
};

using Square = Tiles<128, 3, 2, 4>;
using Wide = Tiles<256, 4, 2, 4>;
using WidePairs = Tiles<256, 4, 2, 2>;
using Single = Tiles<64, 3, 1, 1>;

using Grouped = InMemory<GroupMinimum, float>;
using Apart = Segments<InMemory<BelowLargest, float>>;
using AtOnce = Flat<InMemory<Residual, float>>;

using hopper::Major;
using Batched = GemmLayout<true, Major::kDepth, Major::kRow>;
using Across = GemmLayout<true, Major::kRow, Major::kRow>;

// The order of the right operand's rows undoes the order of the accumulators.
constexpr bool orders_agree() {
  for (int quad = 0; quad < 4; ++quad) {
    for (int index = 0; index < 64; ++index) {
      const int row = index / 4 * 8 + quad * 2 + index % 2;
      if (split::interleaved(column_of<Square>(index, quad)) != row) return false;
      if (column_of<WidePairs>(index, quad) != row) return false;
    }
  }
  return true;
}
static_assert(orders_agree());

}  // namespace kw::check
