// The multiplying side of a convolution: a warpgroup's sums of products over the stages of a tile.
//
// The operands are where conv_feed.cuh has put them; this is a walk through the list of depth steps
// (conv_shape.cuh), for one phase after the other. Short lists are unrolled, so that descriptors
// are a base and constants; long ones, and those of phases, are read from shared memory.
//
// Weights are resident, or they stream through a ring of kSlots slots of up to kSlotSteps depth
// steps each: a list is multiplied in groups, and a group is a slot.
#pragma once

#include "conv_feed.cuh"
#include "conv_products.cuh"

namespace kw {

template <class Loop, class S>
struct ConvSums {
  using M = ConvMemory<Loop, S>;
  static constexpr bool kPixels = S::kPixelsOnM != 0;
  static constexpr bool kAlongX = S::kAlongX != 0;
  static constexpr int kColumns = kPixels ? S::kChannels : 8 * S::kRows;  // of one product
  static constexpr int kHigh = kPixels ? 1 : S::kChannels / 64;           // products on one another
  static constexpr int kParts = S::kBlocksX * S::kBlocksY * S::kBlocksZ * kHigh;
  static constexpr int kPer = kColumns / 2;
  static constexpr bool kPromotes = Loop::kPlanes == 2 && S::kPromote != 0;
  static constexpr bool kOneStage = S::kSteps == 1;
  static constexpr bool kStreams = S::kResident == 0;
  // The warpgroups take turns by groups of depth steps or by phases of tiles.
  static constexpr bool kTurns = kPromotes || (kOneStage && !kStreams);
  using Product =
      hopper::Product<Loop::kElement, kColumns, hopper::Major::kDepth, hopper::Major::kDepth>;
  static_assert(kPixels ? S::kRows == 8 : S::kChannels % 64 == 0, "64 rows to a product");

  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  const ConvStage* const stages;
  const int items;
  const int group;  // the warpgroup, 0 or 1

  int at = 0;  // the stage
  uint32_t parity = 0;
  int slot = 0;  // of the streaming weights
  uint32_t slot_parity = 0;
  int pending = -1;  // a slot whose products are still running

  // Of the phase and tile at hand. A result is d times `down` and the weight's scale; with the
  // weights' doubts, `doubt` and `most_down` bound its error.
  float d[kParts][kPer];
  float down;
  float doubt;
  float most_down;

  // The warpgroup's part of the block's tile.
  __device__ __forceinline__ int wide() const { return S::kSplitX > 1 ? group * S::kWide : 0; }
  __device__ __forceinline__ int tall() const { return S::kSplitY > 1 ? group * S::kTall : 0; }
  __device__ __forceinline__ int deep() const { return S::kSplitZ > 1 ? group * S::kDeep : 0; }
  __device__ __forceinline__ int channels() const {
    return S::kSplitC > 1 ? group * S::kChannels : 0;
  }

  __device__ __forceinline__ void begin() const {
    if (kTurns && group == 1) hopper::arrive_threads<256>(1);
    if (!kStreams && hopper::block_index() < items) hopper::wait(barriers.weights[0], 0);
  }

  __device__ __forceinline__ void await_slot() const {
    if constexpr (kStreams) hopper::wait(barriers.weights[slot], slot_parity);
  }
  __device__ __forceinline__ void next_slot() {
    if (kStreams && ++slot == S::kSlots) {
      slot = 0;
      slot_parity ^= 1;
    }
  }
  // A slot's products are done.
  __device__ __forceinline__ void release_slot(int done) const {
    if (kStreams && threadIdx.x % 32 == 0) detail::arrive(barriers.read[done]);
  }

  __device__ __forceinline__ void take_turn() const { hopper::sync_threads<256>(1 + group); }
  __device__ __forceinline__ void give_turn() const { hopper::arrive_threads<256>(2 - group); }

  __device__ __forceinline__ void next_stage() {
    if (++at == S::kStages) {
      at = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) detail::arrive(barriers.empty[stage]);
  }

  // Where a part of the tile begins in the halo.
  KW_FN static constexpr int part_places(int part) {
    const int block = part / kHigh;
    const int bx = block % S::kBlocksX;
    const int by = block / S::kBlocksX % S::kBlocksY;
    const int bz = block / (S::kBlocksX * S::kBlocksY);
    const int x = kAlongX ? bx * S::kRows * 8 : bx * 8;
    const int y = kAlongX ? by : by * S::kRows;
    return (bz * S::kStepZ * S::kHaloH + y * S::kStepY) * S::kRowPitch + x;
  }

  // The low words of descriptors: of the first places and of the first weights.
  struct Base {
    uint32_t places;
    uint32_t weights;
  };

  // For a group of depth steps that begins with `from`, of those that have `before` before them.
  __device__ __forceinline__ Base base(int step, int before, int from) const {
    const int first = (deep() * S::kStepZ * S::kHaloH + tall() * S::kStepY) * S::kRowPitch + wide();
    const uint8_t* const begin =
        shared + M::kWeightsAt + (kStreams ? slot * M::kSlot : step * M::kWeightsStep);
    const int skipped = kStreams ? 0 : (before + from) * 2 * S::kBlockChannels;
    return {(hopper::shared_address(shared + at * M::kStage) >> 4) + static_cast<uint32_t>(first),
            (hopper::shared_address(begin) >> 4) + static_cast<uint32_t>(channels() + skipped) +
                (static_cast<uint32_t>(S::kBlockChannels) << 16)};
  }

  // One depth step of parts kFirst to kLast; `places` says where its places are.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void multiply_step(float (*d)[kPer], const Base& base, int term,
                                                       int step, uint32_t places, int add) {
    constexpr uint32_t kRowsOn = kAlongX ? 8 : static_cast<uint32_t>(S::kRowPitch * S::kStepY);
    constexpr uint64_t kPlacesDown = uint64_t{kRowsOn} << 32;
    constexpr uint64_t kWeightsDown = uint64_t{128 / 16} << 32;
    constexpr int kWeightsPlane = (kStreams ? M::kSlotPlane : M::kWeightsPlane) / 16;
    constexpr int kPlacesPlane = S::kChunks * S::kPlane;
    // Small terms first: the weights' low halves, then those of the places.
    const int weights_low = Loop::kPlanes == 2 && term == 0 ? kWeightsPlane : 0;
    const int places_low = Loop::kPlanes == 2 && term == 1 ? kPlacesPlane : 0;
#pragma unroll
    for (int part = kFirst; part < kLast; ++part) {
      const uint64_t p = kPlacesDown | (base.places + places +
                                        static_cast<uint32_t>(part_places(part) + places_low));
      const uint64_t w =
          kWeightsDown | (base.weights + static_cast<uint32_t>(step * 2 * S::kBlockChannels +
                                                               part % kHigh * 64 + weights_low));
      if constexpr (kPixels) {
        Product::run(d[part - kFirst], p, w, add);
      } else {
        Product::run(d[part - kFirst], w, p, add);
      }
    }
  }

  static constexpr int kPasses = Loop::kPlanes == 2 ? 3 : 1;

  // Depth steps kFrom to kTo of the only phase.
  template <int kFrom, int kTo, int kFirst, int kLast>
  __device__ __forceinline__ static void multiply(float (*d)[kPer], const Base& base, int add) {
    constexpr auto kList = S::places();
#pragma unroll
    for (int part = 0; part < kLast - kFirst; ++part) hopper::pin(d[part]);
    hopper::begin_products();
#pragma unroll
    for (int term = 0; term < kPasses; ++term) {
#pragma unroll
      for (int s = kFrom; s < kTo; ++s) {
        multiply_step<kFirst, kLast>(d, base, term, s - kFrom, kList.at[s],
                                     term > 0 || s > kFrom ? 1 : add);
      }
    }
    hopper::commit_products();
  }

  // Depth steps `from` to `to` of a phase whose list this is.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void multiply(float (*d)[kPer], const Base& base, int add,
                                                  const uint32_t* list, int from, int to) {
#pragma unroll
    for (int part = 0; part < kLast - kFirst; ++part) hopper::pin(d[part]);
    hopper::begin_products();
#pragma unroll
    for (int term = 0; term < kPasses; ++term) {
      int s = from;
#pragma unroll 1
      do {
        multiply_step<kFirst, kLast>(d, base, term, s - from, list[s],
                                     term > 0 || s > from ? 1 : add);
      } while (++s < to);
    }
    hopper::commit_products();
  }

  // ---- the steps of a phase --------------------------------------------------------------------

  using Steps = ConvSteps<Loop, S>;

  // Group after group into the accumulators; at most the last one is still running afterwards.
  template <int kFrom = 0>
  __device__ __forceinline__ void multiply_groups(int step, int add) {
    constexpr int kLength = Steps::length_of(S::kDepthSteps);
    constexpr int kTo = kFrom + kLength < S::kDepthSteps ? kFrom + kLength : S::kDepthSteps;
    if constexpr (kFrom < S::kDepthSteps) {
      await_slot();
      multiply<kFrom, kTo, 0, kParts>(d, base(step, 0, kFrom), kFrom > 0 ? 1 : add);
      end_group();
      multiply_groups<kTo>(step, add);
    }
  }

  __device__ __forceinline__ void multiply_all(const Steps& steps, int step, int add) {
    if constexpr (S::kListed) {
#pragma unroll 1
      for (int from = 0; from < steps.count; from += steps.length()) {
        await_slot();
        multiply<0, kParts>(d, base(step, steps.before, from), from > 0 ? 1 : add, steps.list, from,
                            min(from + steps.length(), steps.count));
        end_group();
      }
    } else {
      multiply_groups(step, add);
    }
  }

  __device__ __forceinline__ void end_group() {
    if constexpr (kStreams) {
      hopper::wait_products<1>();
      if (pending >= 0) release_slot(pending);
      pending = slot;
      next_slot();
    }
  }

  // A part's group of depth steps, and what it adds to the sums.
  template <int kPart, class Multiply>
  __device__ __forceinline__ void add_group(float factor, const Multiply& run) {
    float partial[1][kPer];
    take_turn();
    if constexpr (kPart == 0) await_slot();
    run(partial);
    give_turn();
    hopper::wait_products<0>();
    hopper::pin(partial[0]);
    if constexpr (kStreams && kPart == kParts - 1) {
      release_slot(slot);
      next_slot();
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) d[kPart][i] = fmaf(partial[0][i], factor, d[kPart][i]);
  }

  // All parts of a group before the next.
  template <int kFrom, int kPart>
  __device__ __forceinline__ void promote(int step, float factor) {
    constexpr int kLength = Steps::length_of(S::kDepthSteps);
    constexpr int kTo = kFrom + kLength < S::kDepthSteps ? kFrom + kLength : S::kDepthSteps;
    if constexpr (kFrom < S::kDepthSteps) {
      add_group<kPart>(factor, [&](float (*partial)[kPer]) {
        multiply<kFrom, kTo, kPart, kPart + 1>(partial, base(step, 0, kFrom), 0);
      });
      if constexpr (kPart + 1 < kParts) {
        promote<kFrom, kPart + 1>(step, factor);
      } else {
        promote<kTo, 0>(step, factor);
      }
    }
  }

  template <int kPart>
  __device__ __forceinline__ void promote_listed(const Steps& steps, int step, float factor,
                                                 int from) {
    add_group<kPart>(factor, [&](float (*partial)[kPer]) {
      multiply<kPart, kPart + 1>(partial, base(step, steps.before, from), 0, steps.list, from,
                                 min(from + steps.length(), steps.count));
    });
    if constexpr (kPart + 1 < kParts) promote_listed<kPart + 1>(steps, step, factor, from);
  }

  __device__ __forceinline__ void promote_all(const Steps& steps, int step, float factor) {
    if constexpr (S::kListed) {
#pragma unroll 1
      for (int from = 0; from < steps.count; from += steps.length()) {
        promote_listed<0>(steps, step, factor, from);
      }
    } else {
      promote<0, 0>(step, factor);
    }
  }

  // ---- the stages of a tile --------------------------------------------------------------------

  __device__ __forceinline__ void multiply_sums(float factor) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) d[part][i] *= factor;
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) d[part][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void finish_products() {
    hopper::wait_products<0>();
    if (kStreams && pending >= 0) {
      release_slot(pending);
      pending = -1;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) hopper::pin(d[part]);
  }

  __device__ __forceinline__ ConvStage note() {
    if constexpr (!Loop::kScaled) return {1.0f, 0.0f};
    const ConvStage stage = stages[at];
    doubt += stage.doubt;
    most_down = fmaxf(most_down, stage.down);
    return stage;
  }

  // A phase of a tile that is one stage: the first one waits for it and the last one releases it.
  __device__ __forceinline__ void sum_stage(int phase) {
    const Steps steps = Steps::of(shared, phase);
    if constexpr (kTurns && !kPromotes) take_turn();
    if (phase == 0) hopper::wait(barriers.full[at], parity);
    const ConvStage stage = note();
    if constexpr (kPromotes) {
      clear();
      promote_all(steps, 0, stage.down);
    } else {
      down = stage.down;
      multiply_all(steps, 0, 0);
      if constexpr (kTurns) give_turn();
      finish_products();
      if (S::kSomeEmpty && steps.count == 0) clear();
    }
    if (phase == S::kPhases - 1) {
      release(at);
      next_stage();
    }
  }

  // A phase of a tile of several stages.
  __device__ __forceinline__ void sum_stages(int phase) {
    const Steps steps = Steps::of(shared, phase);
    if constexpr (kPromotes) clear();
    int before = at;
#pragma unroll 1
    for (int step = 0; step < S::kSteps; ++step, next_stage()) {
      hopper::wait(barriers.full[at], parity);
      const ConvStage stage = note();
      if constexpr (kPromotes) {
        promote_all(steps, step, stage.down);
        release(at);
      } else {
        if (Loop::kScaled && step > 0 && stage.down != down) {  // other units from here on
          finish_products();
          multiply_sums(down / stage.down);
        }
        down = stage.down;
        multiply_all(steps, step, step > 0);
        if (step > 0) {
          hopper::wait_products<1>();
          release(before);
        }
        before = at;
      }
    }
    if constexpr (!kPromotes) {
      finish_products();
      release(before);
      if (S::kSomeEmpty && steps.count == 0) clear();
    }
  }

  // All products of a phase of the next tile.
  __device__ __forceinline__ void sum(int phase) {
    down = 1.0f;
    doubt = 0.0f;
    most_down = 0.0f;
    if constexpr (kOneStage) {
      sum_stage(phase);
    } else {
      sum_stages(phase);
    }
  }
};

}  // namespace kw
