// The weights that a warpgroup of a convolution fetches for itself, kWeightRing stages of them
// ahead of its products.
//
// Where they come with the stages, a stage has room for those of both warpgroups, and keeps them
// until both are done. A warpgroup with channels of its own needs its own alone, and asks for the
// next ones as soon as its products are done with the last: stages are the input's, and there are
// more of them.
#pragma once

#include "conv_feed.cuh"

namespace kw {

template <class Loop, class S>
struct ConvWeightRing {
  using M = ConvMemory<Loop, S>;

  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  const void* const packed;
  const int64_t items;
  const int group;

  // Of the stage that is next.
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint8_t* place(int slot) const {
    return shared + M::kWeightsAt + (group * S::kWeightRing + slot) * M::kRing;
  }
  __device__ __forceinline__ const uint8_t* at() const { return place(slot); }

  // The weights of a stage of the tile, or of the next tile if it has no such stage; by one thread.
  __device__ __forceinline__ void fetch(int to, int64_t index, int step) const {
    if (step >= S::kSteps) {
      step -= S::kSteps;
      index += hopper::block_count();
    }
    if (index >= items) return;
    const int64_t tile = static_cast<int64_t>(static_cast<uint32_t>(index) % S::kChannelTiles);
    const auto* const from = static_cast<const uint8_t*>(packed) +
                             (tile * S::kSteps + step) * M::kWeightsStep + group * M::kWeightsRun;
    hopper::Barrier& full = barriers.ring_full[group][to];
    hopper::arrive_expecting(full, M::kWeightsRun);
    detail::copy_bytes(place(to), from, M::kWeightsRun, full);
  }

  __device__ __forceinline__ void begin() const {
    if (threadIdx.x % 128 == 0) {
      for (int s = 0; s < S::kWeightRing; ++s) fetch(s, hopper::block_index(), s);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void wait() const {
    hopper::wait(barriers.ring_full[group][slot], parity);
  }
  __device__ __forceinline__ void advance() {
    if (++slot == S::kWeightRing) {
      slot = 0;
      parity ^= 1;
    }
  }

  // When the products of a stage before this one, or before all others of the next tile, are done,
  // which all warps say: its place is for the weights that come kWeightRing stages later.
  __device__ __forceinline__ void refill(int64_t index, int step) const {
    const bool wraps = slot == 0;
    const int free = wraps ? S::kWeightRing - 1 : slot - 1;
    hopper::Barrier& empty = barriers.ring_empty[group][free];
    if (threadIdx.x % 32 == 0) detail::arrive(empty);
    if (threadIdx.x % 128 == 0) {
      hopper::wait(empty, wraps ? parity ^ 1 : parity);
      fetch(free, index, step + S::kWeightRing);
    }
    __syncwarp();
  }
};

}  // namespace kw
