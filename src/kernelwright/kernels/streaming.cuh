// Row programs on the GPU for rows of any length: a block per row, or kCluster of them for one of
// more than kAlone elements, and every reading goes over the row again.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "reduce.cuh"

namespace kw {

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
    // Some chunks at once, so that a thread waits for all of them together; those beyond the end
    // are the first one once more, and count for nothing.
    constexpr int kAtOnce = 4;
    Vec<kAtOnce> totals[decltype(reading)::kCount];
    for_each_stage_of(reading, [&](auto stage) {
      totals[stage.value - kFirst] = everywhere<kAtOnce>(identity<P::kCombine[stage.value]>());
    });
#pragma unroll 1
    for (int64_t e = first; e < elements; e += kAtOnce * step) {
      KW_LANES
      for (int n = 0; n < kAtOnce; ++n) {
        const bool inside = n == 0 || e + n * step < elements;
        const int64_t at = inside ? e + n * step : first;
        if constexpr (P::kElements > 0) __builtin_assume(at >= 0 && at < P::kElements);
        typename P::template Fields<V> f;
        replay<P, kFirst, V, 1>(f, s, a, Cursor{row, at});
        for_each_stage_of(reading, [&](auto stage) {
          constexpr Combine kOp = P::kCombine[stage.value];
          const Vec<V> x = P::contribution(stage, f, s, a, Cursor{row, at});
          float& total = totals[stage.value - kFirst][n];
          total = combine<kOp>(total, inside ? combine_lanes<kOp>(x) : identity<kOp>());
        });
      }
    }
    for_each_stage_of(reading, [&](auto stage) {
      constexpr int I = decltype(stage)::value;
      constexpr Combine kOp = P::kCombine[I];
      Vec<1> total{{combine_lanes<kOp>(totals[I - kFirst])}};
      total[0] = reduce_threads<kOp, C::kThreads>(total[0]);
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
