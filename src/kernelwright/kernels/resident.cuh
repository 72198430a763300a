// Row programs on the GPU, the row kept in registers from the first load to the last store.
//
// A team of kLanes threads owns a segment (or the row, where there are none); kTeams teams share a
// row, kRows rows share a block. Memory is read once and written once. Teams within a warp reduce
// by shuffles, larger ones through shared memory.
#pragma once

#include <cuda_runtime.h>

#include "reduce.cuh"

namespace kw {

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) resident_kernel(const typename P::Args a) {
  constexpr int V = C::kVec;
  constexpr int kRowThreads = C::kLanes * C::kTeams;
  constexpr int kSegment = P::kSegment ? P::kSegment : P::kElements;
  constexpr int kSegments = P::kElements / kSegment;
  constexpr int kOwned = (kSegments + C::kTeams - 1) / C::kTeams;
  constexpr int kChunks = (kSegment + C::kLanes * V - 1) / (C::kLanes * V);
  constexpr bool kExact = kSegments % C::kTeams == 0 && kSegment % (C::kLanes * V) == 0;
  const int lane = threadIdx.x % C::kLanes;
  const int team = threadIdx.x / C::kLanes % C::kTeams;
  const int64_t wanted = int64_t{blockIdx.x} * C::kRows + threadIdx.x / kRowThreads;
  const bool live = wanted < P::rows(a);
  const int64_t row = live ? wanted : P::rows(a) - 1;  // idle teams repeat a row and store nothing

  typename P::template Fields<V> f[kOwned][kChunks];
  typename P::template Scalars<1> s[kOwned];

  const auto inside = [&](int q, int c) {
    return kExact || (q * C::kTeams + team < kSegments && (c * C::kLanes + lane) * V < kSegment);
  };
  const auto cursor = [&](int q, int c) {
    return Cursor{row, (q * C::kTeams + team) * kSegment + (c * C::kLanes + lane) * V};
  };

  for_each_stage<P>([&](auto stage) {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    Vec<1> row_total{{identity<kOp>()}};
    KW_LANES
    for (int q = 0; q < kOwned; ++q) {
      Vec<1> total{{identity<kOp>()}};
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (!inside(q, c)) continue;
        const Vec<V> x = P::contribution(stage, f[q][c], s[q], a, cursor(q, c));
        total[0] = combine<kOp>(total[0], combine_lanes<kOp>(x));
      }
      if constexpr (P::kOverSegment[I]) {
        total[0] = reduce_threads<kOp, C::kLanes>(total[0]);
        P::finish(stage, s[q], total, a);
      } else {
        row_total[0] = combine<kOp>(row_total[0], total[0]);
      }
    }
    if constexpr (!P::kOverSegment[I]) {
      row_total[0] = reduce_threads<kOp, kRowThreads>(row_total[0]);
      KW_LANES
      for (int q = 0; q < kOwned; ++q) P::finish(stage, s[q], row_total, a);
    }
  });

  if (!live) return;
  KW_LANES
  for (int q = 0; q < kOwned; ++q) {
    KW_LANES
    for (int c = 0; c < kChunks; ++c) {
      if (inside(q, c)) P::store_elements(f[q][c], s[q], a, cursor(q, c));
    }
    if (lane == 0 && inside(q, 0)) P::store_segment(s[q], a, cursor(q, 0));
  }
  if (lane == 0 && team == 0) P::store_row(s[0], a, Cursor{row, 0});
}

template <class P, class C>
cudaError_t resident(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((rows + C::kRows - 1) / C::kRows);
  resident_kernel<P, C><<<grid, C::kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace kw
