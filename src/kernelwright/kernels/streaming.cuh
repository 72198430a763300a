// Row programs on the GPU for rows of any length: a block per row, or kCluster of them for one of
// more than kAlone elements, and every reading goes over the row again.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "reduce.cuh"

namespace kw {

// Chunks at once, so that a thread waits for all of them together.
inline constexpr int kAtOnce = 4;

template <class, int>
using StreamedChunks = Vec<kAtOnce>;

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) streaming_kernel(const typename P::Args a) {
  const Share share = share_of_row();
  if (share.row >= P::rows(a)) return;
  if (share.blocks > 1) arrive_in_cluster();
  await_turn();
  constexpr int V = C::kVec;
  const int64_t row = share.row;
  const int64_t step = int64_t{C::kThreads} * V * share.blocks;
  const int64_t first = (int64_t{C::kThreads} * share.rank + threadIdx.x) * V;
  const int64_t elements = P::elements(a);
  typename P::template Scalars<1> s;
  for_each_reading<P>([&](auto reading) {
    constexpr int kFirst = decltype(reading)::kFirst;
    constexpr int kEnd = decltype(reading)::kEnd;
    OfStages<P, TotalOf, kFirst, kEnd> totals;
    for_each_stage_of(reading, [&](auto stage) {
      constexpr int I = decltype(stage)::value;
      totals.of(stage) = identity<P::kCombine[I], TotalOf<P, I>>();
    });
#pragma unroll 1
    for (int64_t e = first; e < elements; e += kAtOnce * step) {
      OfStages<P, StreamedChunks, kFirst, kEnd> chunks;
      KW_LANES
      for (int n = 0; n < kAtOnce; ++n) {
        // Beyond the end it is the first chunk once more, and counts for nothing.
        const bool inside = n == 0 || e + n * step < elements;
        const int64_t at = inside ? e + n * step : first;
        if constexpr (P::kElements > 0) __builtin_assume(at >= 0 && at < P::kElements);
        typename P::template Fields<V> f;
        replay<P, kFirst, V, 1>(f, s, a, Cursor{row, at});
        for_each_stage_of(reading, [&](auto stage) {
          constexpr Combine kOp = P::kCombine[stage.value];
          const Vec<V> x = P::contribution(stage, f, s, a, Cursor{row, at});
          chunks.of(stage)[n] = inside ? combine_lanes<kOp>(x) : identity<kOp>();
        });
      }
      const bool some = e + (kAtOnce - 1) * step >= elements;
      for_each_stage_of(reading, [&](auto stage) {
        constexpr int I = decltype(stage)::value;
        constexpr Combine kOp = P::kCombine[I];
        const auto more = fold_to_total<kOp, TotalOf<P, I>>(chunks.of(stage), some);
        totals.of(stage) = combine<kOp>(totals.of(stage), more);
      });
    }
    for_each_stage_of(reading, [&](auto stage) {
      constexpr int I = decltype(stage)::value;
      constexpr Combine kOp = P::kCombine[I];
      Vec<1, TotalOf<P, I>> total{{reduce_threads<kOp, C::kThreads>(totals.of(stage))}};
      total[0] = reduce_blocks<kOp, C::kCluster, I>(total[0], share);
      P::finish(stage, s, total, a);
    });
  });
  if constexpr (P::kStoresElements) {
#pragma unroll 4
    for (int64_t e = first; e < elements; e += step) {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, 1>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    }
  }
  if (first == 0) P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
cudaError_t streaming(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  const int shared = P::elements(a) > C::kAlone ? C::kCluster : 1;
  const auto blocks = static_cast<unsigned>(rows * shared);
  const Grid grid{blocks, C::kThreads, stream, 0, static_cast<unsigned>(shared)};
  return launch(streaming_kernel<P, C>, grid, a);
}

}  // namespace kw
