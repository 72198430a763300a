// Row programs without a reduction, on the CPU, between tensors whose neighbours lie along
// different axes: channels last on one side, channels first on the other.
//
// Results are neighbours along a row, and what is read along kAcross rows, or the other way round.
// A line of the cache that a vector gathers one number from has those of the next rows too: tiles
// are short enough for all of their lines to stay in the first-level cache until these have been
// taken. Where blocks are turned in registers (across.hpp), the rows of a tile follow one another
// instead, and their fields keep what they share.
#pragma once

#include "across.hpp"
#include "chunks.hpp"

namespace kw {

template <class P, class C>
void tiled(const typename P::Args& a, int threads) {
  constexpr int64_t kTileRun = 64;
  constexpr int64_t kTilesAcross = (C::kAcross + kTileAcross - 1) / kTileAcross;
  constexpr int64_t kTilesRun = (C::kRun + kTileRun - 1) / kTileRun;
  const int64_t tiles = P::rows(a) / C::kAcross * kTilesRun * kTilesAcross;
  const typename P::template Scalars<1> s{};
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = i / kTilesAcross % kTilesRun * kTileRun;
    const int64_t end = std::min(begin + kTileRun, int64_t{C::kRun});
    const int64_t across = i % kTilesAcross * kTileAcross;
    const int64_t first = i / (kTilesRun * kTilesAcross) * C::kAcross + across;
    const int64_t last = first + std::min<int64_t>(kTileAcross, C::kAcross - across);
    if constexpr (kTurned > 0) {
      for_each_chunk<C::kVec, C::kRun>(begin, end, end - begin,
                                       [&](auto lanes, int64_t, int64_t e) KW_INLINE {
                                         typename P::template Fields<decltype(lanes)::value> f;
                                         for (int64_t row = first; row < last; ++row) {
                                           P::store_elements(f, s, a, Cursor{row, e});
                                         }
                                       });
    } else {
      for (int64_t row = first; row < last; ++row) {
        for_each_chunk<C::kVec, C::kRun>(begin, end, end - begin,
                                         [&](auto lanes, int64_t, int64_t e) KW_INLINE {
                                           typename P::template Fields<decltype(lanes)::value> f;
                                           P::store_elements(f, s, a, Cursor{row, e});
                                         });
      }
    }
  }
}

}  // namespace kw
