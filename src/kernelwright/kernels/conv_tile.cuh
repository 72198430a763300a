// What the main loop of a convolution hands to its epilogue: a slice of results in shared memory,
// channel by channel.
#pragma once

#include <cstdint>

#include "scalar.cuh"

namespace kw {

// [C::kTileChannels][C::kTilePitch] sums; place (z, y, x) of the slice is the element
// (z * C::kTileH + y) * C::kTileW + x of its channel. Places beyond the output and channels beyond
// the last one hold anything. A result is a sum times the channel's scale: what writes the sums is
// straight-line code, in which every instruction counts, and what reads them is a loop.
template <class C>
struct ConvTile {
  float* at;            // may be written
  const float* scales;  // of its channels, if C::kUnscaled
  int64_t sample;       // of the batch
  int channel;          // the slice's first one
  int z, y, x;          // its first place in the output
  int barrier;          // a named barrier for its threads, unless they are one warp

  KW_FN float scale(int row) const {
    if constexpr (C::kUnscaled != 0) return scales[row];
    return 1.0f;
  }
};

// ConvEpilogue<P, C>{args}.run(tile, thread) is called by C::kEpilogueThreads threads once the
// slice is complete and visible to all of them. Afterwards the memory is used again.
template <class P, class C>
struct ConvEpilogue;

// Of a program with P::kInRegisters: ConvRows (conv_rows.cuh) does its reductions before there is
// any slice, and of the epilogue store(tile, thread) alone is called, if it stores elements.
template <class P, class Loop, class S>
struct ConvRows;

// The same of a program with P::kAcross, whose reductions are over channels (conv_across.cuh).
template <class P, class Loop, class S>
struct ConvAcross;

}  // namespace kw
