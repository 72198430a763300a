// The multiplying side of a convolution: a warpgroup's sums of products over the stages of a tile.
//
// The operands are where conv_feed.cuh has put them; this is a walk through the list of depth steps
// (conv_shape.cuh), for one phase after the other. Short lists are unrolled, so that descriptors
// are a base and constants; long ones, and those of phases, are read from shared memory.
#pragma once

#include "conv_products.cuh"
#include "conv_ring.cuh"

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
  static constexpr int kMostSums = 160;  // registers of a thread, beside all others

  // The warpgroups take turns. One multiplies while the other is in its epilogue: if both
  // multiplied at once they would also be in their epilogues at once, and the tensor cores idle.
  // Where a tile has several stages, which come to both at the same time, turns are stages, and one
  // is ahead of the other by one of them; where it has several phases, which a warpgroup writes
  // into its slice in between, or partial sums, one multiplies while the other writes or promotes.
  static constexpr bool kByTiles = kOneStage && S::kPhases == 1;
  static constexpr bool kByGroups = kPromotes && !kByTiles;
  static constexpr bool kByStages = !kOneStage && !kPromotes && S::kPhases == 1;
  // Partial sums at once: those of one part are promoted while those of the next one are made.
  static constexpr int kPartials = kByTiles && (kParts + 2) * kPer <= kMostSums ? 2 : 1;

  // How far the next eight places are, and where a part of the tile begins in the halo.
  static constexpr int kNextEight = kAlongX ? 8 : S::kRowPitch * S::kStepY;
  KW_FN static constexpr int part_places(int part) {
    const int block = part / kHigh;
    const int bx = block % S::kBlocksX;
    const int by = block / S::kBlocksX % S::kBlocksY;
    const int bz = block / (S::kBlocksX * S::kBlocksY);
    const int x = kAlongX ? bx * S::kRows * 8 : bx * 8;
    const int y = kAlongX ? by : by * S::kRows;
    return (bz * S::kStepZ * S::kHaloH + y * S::kStepY) * S::kRowPitch + x;
  }
  // Parts that are one product, because one begins where the eights of the other end: the weights
  // are read once for all of them. Partial sums are made part by part.
  static constexpr int kJoined = [] {
    int most = 1;
    for (int n = 2; kAlongX && !kPixels && !kPromotes && kHigh == 1 && n <= kParts; ++n) {
      bool fits = kParts % n == 0 && hopper::is_width(n * kColumns);
      for (int part = 1; part < kParts; ++part) {
        const int on = part_places(part) - part_places(part - 1);
        fits = fits && (part % n == 0 || on == S::kRows * kNextEight);
      }
      most = fits ? n : most;
    }
    return most;
  }();
  using Product = hopper::Product<Loop::kElement, kJoined * kColumns, hopper::Major::kDepth,
                                  hopper::Major::kDepth>;
  static_assert(kPixels ? S::kRows == 8 : S::kChannels % 64 == 0, "64 rows to a product");

  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  const ConvStage* const stages;
  const int group;               // the warpgroup, 0 or 1
  ConvWeightRing<Loop, S> ring;  // of weights, if it has one

  int at = 0;  // the stage
  uint32_t parity = 0;

  // Of the phase and tile at hand. A result is d times `down` and the weight's scale; with the
  // weights' doubts, `doubt` and `most_down` bound its error.
  float d[kParts][kPer];
  float down;
  float doubt;
  float most_down;

  // Magnitudes that a result of a channel must be above; a NaN never is. Zeros are zero without any
  // doubt.
  __device__ __forceinline__ static float least(const RowScale& weight, float doubt,
                                                float most_down) {
    const float bound = weight.doubt * most_down + fabsf(weight.scale) * doubt;
    return bound == 0.0f ? -1.0f : bound;
  }

  // The warpgroup's part of the block's tile.
  __device__ __forceinline__ int wide() const { return S::kSplitX > 1 ? group * S::kAdvanceX : 0; }
  __device__ __forceinline__ int tall() const { return S::kSplitY > 1 ? group * S::kAdvanceY : 0; }
  __device__ __forceinline__ int deep() const { return S::kSplitZ > 1 ? group * S::kAdvanceZ : 0; }
  __device__ __forceinline__ int channels() const {
    return S::kSplitC > 1 ? group * S::kChannels : 0;
  }

  __device__ __forceinline__ ConvSums(uint8_t* shared, ConvBarriers<S>& barriers,
                                      const ConvStage* stages, int group, const void* packed,
                                      int64_t items)
      : shared(shared),
        barriers(barriers),
        stages(stages),
        group(group),
        ring{shared, barriers, packed, items, group} {}

  __device__ __forceinline__ void begin() const {
    if ((kOneStage || kPromotes || kByStages) && group == 1) hopper::arrive_threads<256>(1);
  }
  __device__ __forceinline__ void take_turn() const { hopper::sync_threads<256>(1 + group); }
  __device__ __forceinline__ void end_turn() const { hopper::arrive_threads<256>(2 - group); }

  __device__ __forceinline__ void next_stage() {
    if (++at == S::kStages) {
      at = 0;
      parity ^= 1;
    }
  }
  // All lanes have read what the stage says of itself, for which wgmma's waits are no order.
  __device__ __forceinline__ void release(int stage) const {
    if constexpr (Loop::kScaled) __syncwarp();
    if (threadIdx.x % 32 == 0) detail::arrive(barriers.empty[stage]);
  }

  // The low words of descriptors: of the first places and of the first weights.
  struct Base {
    uint32_t places;
    uint32_t weights;
  };

  __device__ __forceinline__ Base base(int step, int before) const {
    const int first = (deep() * S::kStepZ * S::kHaloH + tall() * S::kStepY) * S::kRowPitch + wide();
    const uint8_t* from =
        shared + M::kWeightsAt + (S::kResident != 0 ? step * M::kWeightsStep : at * M::kRing);
    if constexpr (S::kWeightRing != 0) from = ring.at();
    const int skipped = M::kRevisits && S::kResident == 0 ? 0 : before * 2 * S::kWeightRows;
    const int above = S::kWeightRing != 0 ? 0 : channels();
    return {(hopper::shared_address(shared + at * M::kStage) >> 4) + static_cast<uint32_t>(first),
            (hopper::shared_address(from) >> 4) + static_cast<uint32_t>(above + skipped) +
                (static_cast<uint32_t>(S::kWeightRows) << 16)};
  }

  // One depth step of parts kFirst to kLast; `places` says where its places are.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void multiply_step(float (*d)[kPer], const Base& base, int term,
                                                       int step, uint32_t places, int add) {
    constexpr uint64_t kPlacesDown = uint64_t{static_cast<uint32_t>(kNextEight)} << 32;
    constexpr uint64_t kWeightsDown = uint64_t{128 / 16} << 32;
    constexpr int kWeightsPlane = (S::kResident != 0 ? M::kWeightsPlane : M::kRingPlane) / 16;
    constexpr int kPlacesPlane = S::kChunks * S::kPlane;
    // Small terms first: the weights' low halves, then those of the places.
    const int weights_low = Loop::kPlanes == 2 && term == 0 ? kWeightsPlane : 0;
    const int places_low = Loop::kPlanes == 2 && term == 1 ? kPlacesPlane : 0;
#pragma unroll
    for (int part = kFirst; part < kLast; part += kJoined) {
      auto& sums = reinterpret_cast<float (&)[kJoined * kPer]>(d[part - kFirst]);
      const uint64_t p = kPlacesDown | (base.places + places +
                                        static_cast<uint32_t>(part_places(part) + places_low));
      const uint64_t w =
          kWeightsDown | (base.weights + static_cast<uint32_t>(step * 2 * S::kWeightRows +
                                                               part % kHigh * 64 + weights_low));
      if constexpr (kPixels) {
        Product::run(sums, p, w, add);
      } else {
        Product::run(sums, w, p, add);
      }
    }
  }

  static constexpr int kTerms = Loop::kPlanes == 2 ? 3 : 1;

  // The last products of a turn by tiles are a group of their own: the turn ends before they do, so
  // that the tensor cores are not without work.
  static constexpr bool kRest = kByTiles && !kPromotes;

  // Depth steps kFrom to kTo of the only phase.
  template <int kFrom, int kTo, int kFirst, int kLast>
  __device__ __forceinline__ static void multiply(float (*d)[kPer], const Base& base, int add) {
    constexpr auto kList = S::places();
#pragma unroll
    for (int part = 0; part < kLast - kFirst; ++part) hopper::pin(d[part]);
    hopper::begin_products();
    constexpr int kHalf = kTerms == 1 ? (kFrom + kTo) / 2 : kFrom;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int s = kFrom; s < kTo; ++s) {
        if (kRest && term == kTerms - 1 && s == kHalf) hopper::commit_products();
        multiply_step<kFirst, kLast>(d, base, term, s, kList.at[s],
                                     term > 0 || s > kFrom ? 1 : add);
      }
    }
    hopper::commit_products();
  }

  // One term of kCount depth steps from `step` on, whose places a list has. All of them are read
  // before the first product: a load between two of them takes longer than they do.
  template <int kCount, int kFirst, int kLast>
  __device__ __forceinline__ static void multiply_steps(float (*d)[kPer], const Base& base,
                                                        int term, const volatile uint32_t* list,
                                                        int step, int add) {
    uint32_t places[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) places[i] = list[step + i];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      multiply_step<kFirst, kLast>(d, base, term, step + i, places[i], i > 0 ? 1 : add);
    }
  }

  // One term of depth steps `from` to `to` of a phase whose list this is.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void multiply_term(float (*d)[kPer], const Base& base, int term,
                                                       const uint32_t* list, int from, int to,
                                                       int add) {
    int s = from;
#pragma unroll 1
    for (; s + 4 <= to; s += 4) {
      multiply_steps<4, kFirst, kLast>(d, base, term, list, s, s > from ? 1 : add);
    }
    add = s > from ? 1 : add;
    if (to - s == 3) multiply_steps<3, kFirst, kLast>(d, base, term, list, s, add);
    if (to - s == 2) multiply_steps<2, kFirst, kLast>(d, base, term, list, s, add);
    if (to - s == 1) multiply_steps<1, kFirst, kLast>(d, base, term, list, s, add);
  }

  template <int kFirst, int kLast>
  __device__ __forceinline__ static void multiply(float (*d)[kPer], const Base& base, int add,
                                                  const uint32_t* list, int from, int to) {
#pragma unroll
    for (int part = 0; part < kLast - kFirst; ++part) hopper::pin(d[part]);
    hopper::begin_products();
    const int half = kRest && kTerms == 1 ? (from + to) / 2 : from;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      const int first = term == 0 ? add : 1;
      if (kRest && kTerms == 1) {
        multiply_term<kFirst, kLast>(d, base, term, list, from, half, first);
      }
      if (kRest && term == kTerms - 1) hopper::commit_products();
      multiply_term<kFirst, kLast>(d, base, term, list, half, to, half > from ? 1 : first);
    }
    hopper::commit_products();
  }

  // ---- the steps of a phase --------------------------------------------------------------------

  struct Steps {
    int before;  // of the phases before it
    int count;
    const uint32_t* list;
  };

  __device__ __forceinline__ Steps steps_of(int phase) const {
    if constexpr (!S::kListed) return {0, S::kDepthSteps, nullptr};
    const auto* const table = reinterpret_cast<const uint32_t*>(shared + M::kTableAt);
    const auto* const starts = table + S::kDepthSteps;
    const int first = S::kPhases == 1 ? 0 : static_cast<int>(starts[phase]);
    const int end = S::kPhases == 1 ? S::kDepthSteps : static_cast<int>(starts[phase + 1]);
    return {first, end - first, table + first};
  }

  __device__ __forceinline__ void multiply_all(const Steps& steps, int step, int add) {
    if constexpr (S::kListed) {
      multiply<0, kParts>(d, base(step, steps.before), add, steps.list, 0, steps.count);
    } else {
      multiply<0, S::kDepthSteps, 0, kParts>(d, base(step, 0), add);
    }
  }

  // What the last products of a part add to its sums, when all but kPending groups are done. The
  // factor is read anew: ptxas (CUDA 13.0) takes additions of equal operands to sums of zero for
  // the same, although there are products in between that write one of them, and drops all but the
  // last.
  template <int kPart, int kPending>
  __device__ __forceinline__ void add(float (&partial)[kPer]) {
    const float factor = *const_cast<const volatile float*>(&stages[at].down);
    hopper::wait_products<kPending>();
    hopper::pin(partial);
#pragma unroll
    for (int i = 0; i < kPer; ++i) d[kPart][i] = fmaf(partial[i], factor, d[kPart][i]);
  }

  template <int kNumber>
  struct Turn {
    static constexpr int kAt = kNumber;
  };

  // Groups of depth steps, part by part, from turn to turn: run(turn, partial) multiplies.
  template <int kTurn, int kEnd, class Run>
  __device__ __forceinline__ void promote(float (&partial)[kPartials][kPer], const Run& run) {
    if constexpr (kTurn < kEnd) {
      if constexpr (kByGroups) take_turn();
      run(Turn<kTurn>{}, partial + kTurn % kPartials);
      if constexpr (kByGroups) end_turn();
      if constexpr (kPartials == 1) {
        add<kTurn % kParts, 0>(partial[0]);
      } else if constexpr (kTurn > 0) {
        add<(kTurn - 1) % kParts, 1>(partial[(kTurn - 1) % 2]);
      }
      promote<kTurn + 1, kEnd>(partial, run);
    } else {
      if constexpr (kByTiles && !S::kListed) end_turn();
      if constexpr (kPartials == 2) {
        add<(kEnd - 1) % kParts, 0>(partial[(kEnd - 1) % 2]);
      }
    }
  }

  // Groups of nearly the same length, all parts of one before the next.
  __device__ __forceinline__ void promote_all(const Steps& steps, int step) {
    const Base at_step = base(step, steps.before);
    float partial[kPartials][kPer];
    if constexpr (S::kListed) {
      const int groups = (steps.count + S::kPromote - 1) / S::kPromote;
      const int length = groups == 0 ? 1 : (steps.count + groups - 1) / groups;
#pragma unroll 1
      for (int from = 0; from < steps.count; from += length) {
        const int to = min(from + length, steps.count);
        promote<0, kParts>(partial, [&](auto turn, float (*sums)[kPer]) {
          constexpr int kPart = decltype(turn)::kAt;
          multiply<kPart, kPart + 1>(sums, at_step, 0, steps.list, from, to);
        });
      }
    } else {
      constexpr int kGroups = (S::kDepthSteps + S::kPromote - 1) / S::kPromote;
      constexpr int kLength = (S::kDepthSteps + kGroups - 1) / kGroups;
      static_assert((kGroups - 1) * kLength < S::kDepthSteps, "no group is empty");
      promote<0, kGroups * kParts>(partial, [&](auto turn, float (*sums)[kPer]) {
        constexpr int kPart = decltype(turn)::kAt % kParts;
        constexpr int kFrom = decltype(turn)::kAt / kParts * kLength;
        constexpr int kTo = kFrom + kLength < S::kDepthSteps ? kFrom + kLength : S::kDepthSteps;
        multiply<kFrom, kTo, kPart, kPart + 1>(sums, at_step, 0);
      });
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
    const Steps steps = steps_of(phase);
    if constexpr (!kByGroups) take_turn();
    if (phase == 0) hopper::wait(barriers.full[at], parity);
    const ConvStage stage = note();
    if constexpr (kPromotes) {
      clear();
      promote_all(steps, 0);
      if (kByTiles && S::kListed) end_turn();
    } else {
      down = stage.down;
      multiply_all(steps, 0, 0);
      if (kRest) hopper::wait_products<1>();
      end_turn();
      finish_products();
      if (S::kSomeEmpty && steps.count == 0) clear();
    }
    if (phase == S::kPhases - 1) {
      release(at);
      next_stage();
    }
  }

  // A phase of a tile of several stages.
  __device__ __forceinline__ void sum_stages(int64_t index, int phase) {
    const Steps steps = steps_of(phase);
    if constexpr (kPromotes) clear();
    int before = at;
#pragma unroll 1
    for (int step = 0; step < S::kSteps; ++step, next_stage()) {
      hopper::wait(barriers.full[at], parity);
      const ConvStage stage = note();
      if constexpr (kPromotes) {
        promote_all(steps, step);
        release(at);
      } else {
        if (Loop::kScaled && step > 0 && stage.down != down) {  // other units from here on
          finish_products();
          multiply_sums(down / stage.down);
        }
        down = stage.down;
        if constexpr (S::kWeightRing != 0) ring.wait();
        if constexpr (kByStages) take_turn();
        multiply_all(steps, step, step > 0);
        if constexpr (kByStages) end_turn();
        if (step > 0) {
          hopper::wait_products<1>();
          release(before);
          if constexpr (S::kWeightRing != 0) ring.refill(index, step - 1);
        }
        if constexpr (S::kWeightRing != 0) ring.advance();
        before = at;
      }
    }
    if constexpr (!kPromotes) {
      finish_products();
      release(before);
      if constexpr (S::kWeightRing != 0) ring.refill(index, S::kSteps - 1);
      if (S::kSomeEmpty && steps.count == 0) clear();
    }
  }

  // All products of a phase of the next tile.
  __device__ __forceinline__ void sum(int64_t index, int phase) {
    down = 1.0f;
    doubt = 0.0f;
    most_down = 0.0f;
    if constexpr (kOneStage) {
      sum_stage(phase);
    } else {
      sum_stages(index, phase);
    }
  }
};

}  // namespace kw
