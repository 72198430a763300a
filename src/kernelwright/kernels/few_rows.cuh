// left [rows, depth] times right [columns, depth] transposed, plus a bias, in float32 for a few
// rows: for up to eight the time is that of reading `right` from memory once.
//
// A warp has four rows of `right` and all rows of `left`. Its lanes share the depth: each holds its
// part of the 32 sums, and in the end they are added up across the lanes. The rows of `left` are
// read again and again, but the warps of a multiprocessor go through the depth at the same pace and
// find them in the L1 cache. Where there are too few columns to keep all warps busy, the warps of a
// block share the depth as well. Sums are float32 multiply-adds in a fixed order: NaN, infinity and
// rounding need no care.
//
// Each eight rows have blocks of their own, which read `right` again: cheap while the L2 cache
// holds it.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "storage.cuh"

namespace kw {

struct FewRows {
  const float* left;
  const float* right;
  const float* bias;  // or null
  float* out;
  int64_t rows;
  int columns;
  int depth;
};

namespace few {

inline constexpr int kMostRows = 8;
inline constexpr int kEach = 4;
inline constexpr int kWarps = 8;

// Adds up kCount values, 32 or fewer, over the lanes of a warp. Lanes give away half of what they
// have in every step, and are left with one sum. Returns its index.
template <int kCount>
__device__ __forceinline__ int scatter_sums(float (&x)[kCount], int lane) {
  int index = 0;
#pragma unroll
  for (int apart = 16, count = kCount; apart > 0; apart /= 2) {
    const bool upper = (lane & apart) != 0;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= count) break;
        const float given = upper ? x[i] : x[i + count];
        x[i] = (upper ? x[i + count] : x[i]) + __shfl_xor_sync(0xffffffff, given, apart);
      }
      if (upper) index += count;
    } else {
      x[0] += __shfl_xor_sync(0xffffffff, x[0], apart);
    }
  }
  return index;
}

template <bool kShareDepth>
__host__ __device__ constexpr int blocks_across(int columns) {
  const int own = kShareDepth ? kEach : kWarps * kEach;
  return (columns + own - 1) / own;
}

// kRows may be more than there are: the last one is repeated and not stored.
template <int kRows, bool kShareDepth>
__global__ void __launch_bounds__(kWarps * 32, 2) kernel(const FewRows g) {
  constexpr int V = 4;
  constexpr int kSteps = kRows > 1 ? 1 : 2;  // whose loads are in flight together
  constexpr int kLanes = kShareDepth ? kWarps * 32 : 32;
  constexpr int kStride = kSteps * kLanes * V;
  const int thread = static_cast<int>(threadIdx.x);
  const int across = blocks_across<kShareDepth>(g.columns);
  const int block = static_cast<int>(blockIdx.x) % across;
  const int column = (kShareDepth ? block : block * kWarps + thread / 32) * kEach;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / across * kMostRows;
  const float* right[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    right[e] = g.right + int64_t{min(column + e, g.columns - 1)} * g.depth;
  }
  const auto load = [&](Vec<V>(&w)[kSteps][kEach], int start) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = start + s * kLanes * V;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        w[s][e] = at < g.depth ? load_once<V>(right[e] + at) : Vec<V>{};
      }
    }
  };
  await_turn();
  float sums[kRows * kEach] = {};
  Vec<V> w[kSteps][kEach];
  const int first = thread % kLanes * V;
  load(w, first);
#pragma unroll 1
  for (int start = first; start < g.depth; start += kStride) {
    Vec<V> next[kSteps][kEach];
    load(next, start + kStride);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = start + s * kLanes * V;
      if (at >= g.depth) break;
      const float* left = g.left + first_row * g.depth + at;
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const Vec<V> x = load_row<V>(left);
        left += first_row + m + 1 < g.rows ? g.depth : 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          float& sum = sums[m * kEach + e];
#pragma unroll
          for (int v = 0; v < V; ++v) sum = fmaf(w[s][e].lanes[v], x.lanes[v], sum);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) w[s][e] = next[s][e];
    }
  }

  constexpr int kCount = kRows * kEach;
  constexpr int kSame = 32 / kCount;  // lanes that hold the same sum
  const int index = scatter_sums(sums, thread % 32);
  float sum = sums[0];
  if constexpr (kShareDepth) {
    __shared__ float partial[kWarps][32];
    partial[thread / 32][thread % 32] = sum;
    __syncthreads();
    if (thread >= 32) return;
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += partial[i][thread];
  }
  const int64_t row = first_row + index / kEach;
  const int at = column + index % kEach;
  if (thread % kSame != 0 || row >= g.rows || at >= g.columns) return;
  g.out[row * g.columns + at] = g.bias != nullptr ? sum + g.bias[at] : sum;
}

template <int kRows, bool kShareDepth>
cudaError_t run(const FewRows& g, cudaStream_t stream) {
  const int64_t down = (g.rows + kMostRows - 1) / kMostRows;
  const auto blocks = static_cast<unsigned>(down * blocks_across<kShareDepth>(g.columns));
  return launch(kernel<kRows, kShareDepth>, Grid{blocks, kWarps * 32, stream}, g);
}

}  // namespace few

template <bool kShareDepth>
cudaError_t few_rows(const FewRows& g, cudaStream_t stream) {
  if (g.rows == 0) return cudaSuccess;
  return g.rows == 1 ? few::run<1, kShareDepth>(g, stream)
                     : few::run<few::kMostRows, kShareDepth>(g, stream);
}

}  // namespace kw
