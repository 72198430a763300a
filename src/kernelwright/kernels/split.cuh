// float32 rows as float16 numbers that the tensor cores multiply.
//
// A row is scaled by a power of two that puts its largest magnitude into [2^14, 2^15). With two
// planes each element is hi + lo, hi = float16(x) and lo = float16(x - hi): 22 bits or more for
// elements down to 2^-17 of the largest, enough for float32 products. With one plane it is hi
// alone: the 11 bits of TF32, for elements down to 2^-28 of the largest. What smaller elements lose
// is summed up as the row's residue, so that the GEMM can bound the error that the loss makes in
// each element of its result and compute the few doubtful ones again. After a NaN, an infinity or a
// largest magnitude beyond 2^+-60 the scale is NaN: all that the row meets is computed again.
#pragma once

#include <cuda_runtime.h>

#include "half.cuh"
#include "launch.cuh"
#include "reduce.cuh"

namespace kw {

// What the result owes to a row: `scale` undoes the power of two; `doubt`, times the other row's
// scale, is the magnitude below which an element of the result is computed again.
struct alignas(8) RowScale {
  float scale;
  float doubt;
};

namespace split {

// Scaled elements from here on lose nothing that counts: at most 2^-22 or 2^-11 of themselves.
template <int kPlanes>
inline constexpr float kSmallest = kPlanes == 2 ? 0x1p-3f : 0x1p-14f;
// How large an error may be: the residue times 2^15 (the other row's largest magnitude) against
// 2^-20 or 2^-11 of the result.
template <int kPlanes>
inline constexpr float kDoubtPerResidue = kPlanes == 2 ? 0x1p35f : 0x1p26f;

// The largest magnitude and the smallest one that is not zero, as bits: they order like the values,
// and NaN is the largest. `least` is one less than the bits, so that a zero is out of the way.
struct Extent {
  uint32_t most = 0;
  uint32_t least = 0xffffffffu;

  __device__ __forceinline__ void add(float x) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    most = max(most, bits);
    least = min(least, bits - 1);
  }
  __device__ __forceinline__ void add(float4 x) {
    add(x.x);
    add(x.y);
    add(x.z);
    add(x.w);
  }
};

struct Scaling {
  float up;
  float down;
  bool exact;

  __device__ __forceinline__ explicit Scaling(uint32_t most) {
    const int exponent = static_cast<int>(most >> 23) - 127;
    exact = most != 0 && (exponent > 60 || exponent < -60);
    const int shift = most == 0 || exact ? 0 : 14 - exponent;
    up = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
    // A row of zeros has the scale zero: whatever it meets, nothing of it was lost.
    down = most == 0 ? 0.0f : __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
  }

  // Whether an element among these loses what counts.
  template <int kPlanes>
  __device__ __forceinline__ bool loses(const Extent& extent) const {
    return extent.least < __float_as_uint(kSmallest<kPlanes> * down) - 1;
  }

  template <int kPlanes>
  __device__ __forceinline__ RowScale scale(float residue) const {
    if (exact) return {__builtin_nanf(""), 0.0f};
    return {down, residue * down * kDoubtPerResidue<kPlanes>};
  }
};

// Two neighbours in packed planes, and what is left of them.
template <int kPlanes>
__device__ __forceinline__ float2 split_pair(float2 x, uint32_t (&planes)[kPlanes]) {
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(planes[p]) : "f"(x.y), "f"(x.x));
    x.x -= to_float(half_t{static_cast<uint16_t>(planes[p])});
    x.y -= to_float(half_t{static_cast<uint16_t>(planes[p] >> 16)});
  }
  return x;
}

template <int kPlanes>
__device__ __forceinline__ float lost(float2 x) {
  uint32_t planes[kPlanes];
  const float2 rest = split_pair<kPlanes>(x, planes);
  const float first = fabsf(x.x) < kSmallest<kPlanes> ? fabsf(rest.x) : 0.0f;
  return first + (fabsf(x.y) < kSmallest<kPlanes> ? fabsf(rest.y) : 0.0f);
}

template <int kPlanes>
__device__ __forceinline__ float lost(float4 x, float up) {
  return lost<kPlanes>(float2{x.x * up, x.y * up}) + lost<kPlanes>(float2{x.z * up, x.w * up});
}

__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
  return __reduce_max_sync(0xffffffff, x);
}

// How the planes lie in memory: in panels of 64 rows, a panel in steps of 64 of depth, a step in
// planes. So all that the product fetches of 64 rows for one stage is one run of memory, and the
// next stage's follows it.
inline constexpr int kPanel = 64;

__host__ __device__ constexpr int64_t whole_panels(int64_t count) {
  return (count + kPanel - 1) / kPanel * kPanel;
}

// Room for a matrix, in float16 numbers.
__host__ __device__ constexpr int64_t room(int64_t rows, int64_t depth, int planes) {
  return whole_panels(rows) * whole_panels(depth) * planes;
}

// Where the first plane of an element is; the next one is kPanel * kPanel further on.
template <int kPlanes>
__device__ __forceinline__ int64_t place(int64_t row, int at, int depth) {
  return row / kPanel * room(kPanel, depth, kPlanes) + row % kPanel * kPanel +
         at / kPanel * (kPlanes * kPanel * kPanel) + at % kPanel;
}

// In the layout of Hopper's products a thread has columns 0, 1 and 8, 9 of sixteen, or 2, 3 and 10,
// 11, and so on. If the rows of the right operand are stored in this order, these are four
// neighbours: loads and stores of the epilogue are twice as wide.
__host__ __device__ constexpr int64_t interleaved(int64_t row) {
  return (row & ~int64_t{15}) | (row >> 1 & 1) << 3 | (row >> 2 & 3) << 1 | (row & 1);
}

// Four neighbours of a row: vector access where the row allows it, zeros behind its end.
template <bool kVector>
__device__ __forceinline__ float4 load_four(const float* row, int at, int depth) {
  if constexpr (kVector) {
    return at < depth ? *reinterpret_cast<const float4*>(row + at) : float4{};
  } else {
    float4 x{};
    if (at < depth) x.x = row[at];
    if (at + 1 < depth) x.y = row[at + 1];
    if (at + 2 < depth) x.z = row[at + 2];
    if (at + 3 < depth) x.w = row[at + 3];
    return x;
  }
}

// Four neighbours into the planes.
template <int kPlanes>
__device__ __forceinline__ void store_four(float4 x, float up, uint16_t* to) {
  uint32_t low[kPlanes];
  uint32_t high[kPlanes];
  split_pair<kPlanes>(float2{x.x * up, x.y * up}, low);
  split_pair<kPlanes>(float2{x.z * up, x.w * up}, high);
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    *reinterpret_cast<uint2*>(to + p * (kPanel * kPanel)) = {low[p], high[p]};
  }
}

// A matrix to split, `count` of its rows from the first one on; rows behind its end, up to a whole
// panel, are zeros.
struct Job {
  const float* x;
  uint16_t* halves;
  RowScale* scales;
  int64_t rows;
  int64_t count;
  bool interleave;
};

// Who splits a row: so many threads, each with room for kKept times four elements in registers, and
// a barrier for all of them. Rows that fit are read once.
struct Block {
  static constexpr int kThreads = 512;
  static constexpr int kKept = 4;
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

template <class Team>
struct Shared {
  uint32_t mosts[Team::kThreads / 32];
  float residues[Team::kThreads / 32];
};

template <class Team, int kPlanes, bool kVector>
__device__ __forceinline__ void split_row(const Job& job, int64_t row, int depth, int thread,
                                          Shared<Team>& shared) {
  constexpr int kStep = Team::kThreads * 4;
  constexpr int kRest = Team::kKept * kStep;
  const int width = static_cast<int>(whole_panels(depth));
  const float* const from = job.x + row * depth;
  const int64_t stored = job.interleave ? interleaved(row) : row;
  uint16_t* const to = job.halves + place<kPlanes>(stored, thread * 4, depth);
  // Whole steps of depth further on, this many times as far in the planes.
  constexpr int kApart = kPlanes * kPanel;
  static_assert(kStep % kPanel == 0, "a thread stays at its place within a step");
  if (row >= job.rows) depth = 0;
  float4 kept[Team::kKept];
  Extent extent;
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    kept[c] = load_four<kVector>(from, c * kStep + thread * 4, depth);
  }
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) extent.add(kept[c]);
#pragma unroll 1
  for (int at = kRest + thread * 4; at < depth; at += kStep) {
    extent.add(load_four<kVector>(from, at, depth));
  }
  uint32_t most = warp_max(extent.most);
  if (thread % 32 == 0) shared.mosts[thread / 32] = most;
  Team::sync();
#pragma unroll
  for (int w = 0; w < Team::kThreads / 32; ++w) most = max(most, shared.mosts[w]);
  const Scaling scaling(most);
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    if (c * kStep + thread * 4 < width) {
      store_four<kPlanes>(kept[c], scaling.up, to + c * kStep * kApart);
    }
  }
#pragma unroll 1
  for (int first = kRest; first + thread * 4 < width; first += kStep) {
    const float4 x = load_four<kVector>(from, first + thread * 4, depth);
    store_four<kPlanes>(x, scaling.up, to + int64_t{first} * kApart);
  }
  float residue = 0.0f;
  if (scaling.loses<kPlanes>(extent)) {
#pragma unroll 1
    for (int at = thread * 4; at < depth; at += kStep) {
      residue += lost<kPlanes>(load_four<kVector>(from, at, depth), scaling.up);
    }
  }
  residue = reduce_threads<Combine::kSum, 32>(residue);
  if (thread % 32 == 0) shared.residues[thread / 32] = residue;
  Team::sync();
  if (thread == 0 && row < job.rows) {
    float total = 0.0f;
    for (int w = 0; w < Team::kThreads / 32; ++w) total += shared.residues[w];
    job.scales[row] = scaling.scale<kPlanes>(total);
  }
}

// How far the GEMM's right operand is: word 0 counts the rows that are taken, word 1 + t those of
// column tile t, `tile_rows` each, that are ready.
struct Progress {
  unsigned* words;
  int count;
  int tile_rows;
};

// Two jobs at once: the left operand, and the first rows of the right one.
template <int kPlanes, bool kVector>
__global__ void __launch_bounds__(Block::kThreads)
    split_kernel(const Job first, const Job second, int depth, const Progress progress) {
  __shared__ Shared<Block> shared;
  const int64_t at = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  await_turn();
  if (at < first.count) {
    split_row<Block, kPlanes, kVector>(first, at, depth, thread, shared);
  } else {
    split_row<Block, kPlanes, kVector>(second, at - first.count, depth, thread, shared);
  }
  if (at == 0) {
    for (int i = thread; i < progress.count; i += Block::kThreads) {
      const int64_t ahead = second.count - int64_t{i - 1} * progress.tile_rows;
      const int64_t most = ahead < progress.tile_rows ? ahead : progress.tile_rows;
      progress.words[i] = static_cast<unsigned>(i == 0 ? second.count : most > 0 ? most : 0);
    }
  }
}

template <int kPlanes>
cudaError_t run(const Job& first, const Job& second, int depth, const Progress& progress,
                cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(first.count + second.count);
  if (grid == 0) return cudaSuccess;
  const auto kernel = depth % 4 == 0 ? split_kernel<kPlanes, true> : split_kernel<kPlanes, false>;
  return launch(kernel, Grid{grid, Block::kThreads, stream}, first, second, depth, progress);
}

}  // namespace split

// All rows of a right operand, for weights that are split once and kept.
template <int kPlanes, bool kInterleave>
cudaError_t split_rows(const void* x, void* halves, void* scales, int64_t rows, int depth,
                       cudaStream_t stream) {
  const split::Job all{static_cast<const float*>(x),   static_cast<uint16_t*>(halves),
                       static_cast<RowScale*>(scales), rows,
                       split::whole_panels(rows),      kInterleave};
  return split::run<kPlanes>(all, split::Job{}, depth, split::Progress{}, stream);
}

}  // namespace kw
