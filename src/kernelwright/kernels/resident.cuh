// Row programs on the GPU, the row kept in registers from the first load to the last store.
//
// A team of kLanes threads owns a segment (or the row, where there are none); kTeams teams share a
// row, kRows rows share a block. Memory is read once and written once. Teams within a warp reduce
// by shuffles, larger ones through shared memory.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "reduce.cuh"

namespace kw {

// One thread's part of a row: kOwned segments, kChunks chunks of each.
template <class P, class C>
struct ResidentThread {
  static constexpr int V = C::kVec;
  static constexpr int kRowThreads = C::kLanes * C::kTeams;
  static constexpr int kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int kSegments = P::kElements / kSegment;
  static constexpr int kOwned = (kSegments + C::kTeams - 1) / C::kTeams;
  static constexpr int kChunks = (kSegment + C::kLanes * V - 1) / (C::kLanes * V);
  static constexpr bool kExact = kSegments % C::kTeams == 0 && kSegment % (C::kLanes * V) == 0;

  const typename P::Args& a;
  int64_t row;
  int lane = static_cast<int>(threadIdx.x % C::kLanes);
  int team = static_cast<int>(threadIdx.x / C::kLanes % C::kTeams);
  typename P::template Fields<V> f[kOwned][kChunks];
  typename P::template Scalars<1> s[kOwned];

  __device__ bool inside(int q, int c) const {
    return kExact || (q * C::kTeams + team < kSegments && (c * C::kLanes + lane) * V < kSegment);
  }

  __device__ Cursor cursor(int q, int c) const {
    return {row, (q * C::kTeams + team) * kSegment + (c * C::kLanes + lane) * V};
  }

  // This thread's share of a stage in segment q.
  template <class S>
  __device__ __forceinline__ auto share(S stage, int q) {
    constexpr Combine kOp = P::kCombine[S::value];
    using T = TotalOf<P, S::value>;
    T total = identity<kOp, T>();
    // Four chunks of a sum that is a double are exact as floats, where each of them is there.
    constexpr int kFours = kExact && sizeof(T) > sizeof(float) ? kChunks / 4 : 0;
    KW_LANES
    for (int four = 0; four < kFours; ++four) {
      Vec<4> chunks;
      KW_LANES
      for (int n = 0; n < 4; ++n) {
        const int c = four * 4 + n;
        chunks[n] = combine_lanes<kOp>(P::contribution(stage, f[q][c], s[q], a, cursor(q, c)));
      }
      total = combine<kOp>(total, fold_to_total<kOp, T>(chunks));
    }
    KW_LANES
    for (int c = kFours * 4; c < kChunks; ++c) {
      if (!inside(q, c)) continue;
      const Vec<V> x = P::contribution(stage, f[q][c], s[q], a, cursor(q, c));
      total = combine<kOp>(total, T{combine_lanes<kOp>(x)});
    }
    return total;
  }

  template <class S, class T>
  __device__ __forceinline__ void finish_segment(S stage, int q, T total) {
    constexpr Combine kOp = P::kCombine[S::value];
    P::finish(stage, s[q], Vec<1, T>{{reduce_threads<kOp, C::kLanes>(total)}}, a);
  }

  // Stages I up to End, all over segment q.
  template <int I, int End>
  __device__ __forceinline__ void segment_stages(int q) {
    if constexpr (I < End) {
      finish_segment(Stage<I>{}, q, share(Stage<I>{}, q));
      segment_stages<I + 1, End>(q);
    }
  }

  __host__ __device__ static constexpr int next_over_row(int stage) {
    while (stage < P::kStages && P::kOverSegment[stage]) ++stage;
    return stage;
  }

  // Everything from stage I on. The first stage over segments loads all of them, so that many loads
  // are in flight; then each segment goes through its stages alone, which takes few registers.
  template <int I>
  __device__ __forceinline__ void run_from() {
    constexpr int kEnd = next_over_row(I);
    if constexpr (I < kEnd) {
      TotalOf<P, I> first[kOwned];
      KW_LANES
      for (int q = 0; q < kOwned; ++q) first[q] = share(Stage<I>{}, q);
      if constexpr (kEnd == P::kStages) {
        KW_LANES
        for (int q = 0; q < kOwned; ++q) {
          finish_segment(Stage<I>{}, q, first[q]);
          segment_stages<I + 1, kEnd>(q);
        }
      } else {
        constexpr Combine kOp = P::kCombine[kEnd];
        auto total = identity<kOp, TotalOf<P, kEnd>>();
        KW_LANES
        for (int q = 0; q < kOwned; ++q) {
          finish_segment(Stage<I>{}, q, first[q]);
          segment_stages<I + 1, kEnd>(q);
          total = combine<kOp>(total, share(Stage<kEnd>{}, q));
        }
        finish_row<kEnd>(total);
      }
    } else if constexpr (kEnd < P::kStages) {
      constexpr Combine kOp = P::kCombine[kEnd];
      auto total = identity<kOp, TotalOf<P, kEnd>>();
      KW_LANES
      for (int q = 0; q < kOwned; ++q) total = combine<kOp>(total, share(Stage<kEnd>{}, q));
      finish_row<kEnd>(total);
    }
  }

  template <int I>
  __device__ __forceinline__ void finish_row(TotalOf<P, I> total) {
    const Vec<1, TotalOf<P, I>> all{{reduce_threads<P::kCombine[I], kRowThreads>(total)}};
    KW_LANES
    for (int q = 0; q < kOwned; ++q) P::finish(Stage<I>{}, s[q], all, a);
    run_from<I + 1>();
  }

  __device__ __forceinline__ void store() {
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
};

// `Row` has 32 bits wherever they suffice: programs divide by sizes to find what a row consists of,
// and 64 bits take several times as long.
template <class Row, class P, class C>
__device__ __forceinline__ void run_resident(const typename P::Args& a) {
  constexpr int kRowThreads = C::kLanes * C::kTeams;
  const Row rows = static_cast<Row>(P::rows(a));
  const Row wanted = static_cast<Row>(blockIdx.x) * C::kRows + threadIdx.x / kRowThreads;
  const bool live = wanted < rows;
  // Idle teams repeat a row and store nothing: everyone takes part in the shuffles.
  ResidentThread<P, C> thread{a, static_cast<int64_t>(live ? wanted : rows - 1)};
  thread.template run_from<0>();
  if (live) thread.store();
}

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    resident_kernel(const typename P::Args a) {
  await_turn();
  if (P::rows(a) < int64_t{1} << 31) {
    run_resident<uint32_t, P, C>(a);
  } else {
    run_resident<uint64_t, P, C>(a);
  }
}

template <class P, class C>
cudaError_t resident(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((rows + C::kRows - 1) / C::kRows);
  return launch(resident_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
