// Row programs without a reduction, on the CPU, between tensors whose neighbours lie along
// different axes: channels last on one side, channels first on the other.
//
// Results are neighbours along a row, and what is read along kAcross rows. A line of the cache that
// a vector gathers one number from has those of the next rows too: tiles are short enough for all
// of their lines to stay in the first-level cache until these have been taken.
#pragma once

#include "chunks.hpp"

namespace kw {

template <class P, class C>
void tiled(const typename P::Args& a, int threads) {
  constexpr int64_t kTileAcross = 16, kTileRun = 64;
  constexpr int64_t kTilesAcross = (C::kAcross + kTileAcross - 1) / kTileAcross;
  constexpr int64_t kTilesRun = (C::kRun + kTileRun - 1) / kTileRun;
  const int64_t tiles = P::rows(a) / C::kAcross * kTilesRun * kTilesAcross;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = i / kTilesAcross % kTilesRun * kTileRun;
    const int64_t end = std::min(begin + kTileRun, int64_t{C::kRun});
    const int64_t first = i % kTilesAcross * kTileAcross;
    const int64_t last = std::min(first + kTileAcross, int64_t{C::kAcross});
    for (int64_t across = first; across < last; ++across) {
      const int64_t row = i / (kTilesRun * kTilesAcross) * C::kAcross + across;
      for_each_chunk<C::kVec>(begin, end, end - begin,
                              [&](auto lanes, int64_t, int64_t e) KW_INLINE {
                                typename P::template Fields<decltype(lanes)::value> f;
                                const typename P::template Scalars<1> s{};
                                P::store_elements(f, s, a, Cursor{row, e});
                              });
    }
  }
}

}  // namespace kw
