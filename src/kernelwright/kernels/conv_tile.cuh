// What the main loop of a convolution hands to its epilogue: a slice of results in shared memory,
// channel by channel.
#pragma once

#include <cstdint>

namespace kw {

// [C::kTileChannels][C::kTilePitch] results; place (z, y, x) of the slice is the element
// (z * C::kTileH + y) * C::kTileW + x of its channel. Places beyond the output and channels beyond
// the last one hold anything.
template <class C>
struct ConvTile {
  float* at;       // may be written
  int64_t sample;  // of the batch
  int channel;     // the slice's first one
  int z, y, x;     // its first place in the output
  int barrier;     // a named barrier for its threads, unless they are one warp
  float* scratch;  // shared memory, C::kScratch floats
};

// ConvEpilogue<P, C>{args}.run(tile, thread) is called by C::kEpilogueThreads threads once the
// slice is complete and visible to all of them. Afterwards the memory is used again.
template <class P, class C>
struct ConvEpilogue;

}  // namespace kw
