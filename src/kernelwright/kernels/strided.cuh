// Row programs on the GPU where rows, not elements, are neighbours in memory.
//
// A block takes kWidth x kVec neighbouring rows, a thread kVec of them, and kDepth threads share
// the elements of each row: a warp's loads are whole cache lines. Partial results meet in shared
// memory in a fixed order; every reading goes over the elements again.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

// One place for all reductions of a kernel, which take turns.
template <class C>
struct DepthPartials {
  using Type = float[C::kDepth][C::kWidth * C::kVec];
  static __device__ __forceinline__ Type& get() {
    __shared__ Type partial;
    return partial;
  }
};

// Combine over the kDepth threads that share rows. Everyone gets the result.
template <Combine Op, class C>
__device__ __forceinline__ Vec<C::kVec> reduce_depth(Vec<C::kVec> total) {
  constexpr int V = C::kVec;
  if constexpr (C::kDepth > 1) {
    auto& partial = DepthPartials<C>::get();
    const int x = threadIdx.x % C::kWidth * V;
    const int y = threadIdx.x / C::kWidth;
    __syncthreads();  // the previous stage may still read
    KW_LANES
    for (int v = 0; v < V; ++v) partial[y][x + v] = total[v];
    for (int half = C::kDepth / 2; half > 0; half /= 2) {
      __syncthreads();
      if (y >= half) continue;
      KW_LANES
      for (int v = 0; v < V; ++v) {
        partial[y][x + v] = combine<Op>(partial[y][x + v], partial[y + half][x + v]);
      }
    }
    __syncthreads();
    KW_LANES
    for (int v = 0; v < V; ++v) total[v] = partial[0][x + v];
  }
  return total;
}

// What the stages of a reading have come to, for V rows.
template <class P, class Reading, int V>
struct Totals {
  Vec<V> totals[Reading::kCount];

  __device__ __forceinline__ Totals() {
    for_each_stage_of(Reading{}, [&](auto stage) {
      (*this)[stage] = everywhere<V>(identity<P::kCombine[stage.value]>());
    });
  }

  template <int I>
  __device__ __forceinline__ Vec<V>& operator[](Stage<I>) {
    return totals[I - Reading::kFirst];
  }

  __device__ __forceinline__ void add(const typename P::template Scalars<V>& s,
                                      const typename P::Args& a, Cursor at) {
    typename P::template Fields<V> f;
    replay<P, Reading::kFirst, V, V>(f, s, a, at);
    for_each_stage_of(Reading{}, [&](auto stage) {
      const Vec<V> x = P::contribution(stage, f, s, a, at);
      (*this)[stage] = combined<P::kCombine[stage.value]>((*this)[stage], x);
    });
  }
};

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) strided_kernel(const typename P::Args a) {
  await_turn();
  constexpr int V = C::kVec;
  const int y = threadIdx.x / C::kWidth;
  const int64_t wanted = (int64_t{blockIdx.x} * C::kWidth + threadIdx.x % C::kWidth) * V;
  const bool live = wanted < P::rows(a);
  const int64_t row = live ? wanted : P::rows(a) - V;  // idle threads repeat rows, store nothing
  const int64_t elements = P::elements(a);
  typename P::template Scalars<V> s;
  for_each_reading<P>([&](auto reading) {
    Totals<P, decltype(reading), V> totals;
    constexpr int kAtOnce = V < 4 ? 8 : 4;  // loads that do not wait for one another
#pragma unroll kAtOnce
    for (int64_t e = y; e < elements; e += C::kDepth) totals.add(s, a, Cursor{row, e});
    for_each_stage_of(reading, [&](auto stage) {
      P::finish(stage, s, reduce_depth<P::kCombine[stage.value], C>(totals[stage]), a);
    });
  });
  if (!live) return;
  if constexpr (P::kStoresElements) {
#pragma unroll 4
    for (int64_t e = y; e < elements; e += C::kDepth) {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    }
  }
  if (y == 0) P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
cudaError_t strided(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  constexpr int64_t kRows = C::kWidth * C::kVec;
  const auto grid = static_cast<unsigned>((rows + kRows - 1) / kRows);
  return launch(strided_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
