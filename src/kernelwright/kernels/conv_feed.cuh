// The feeding side of a convolution: NCHW input into halo tiles that the tensor cores read.
//
// Four warps go through the tiles of their block, stage by stage. A stage is a list of units, 16
// bytes each: eight channels of one place of the halo. Each thread copies the elements of its units
// one by one into shared memory of its own, kAhead rounds ahead of the one it converts, so that
// copies are always on their way; what lies outside of the input comes as zeros, which is also the
// padding. Elements of a unit are neighbours of the other threads' units, so that a warp copies
// runs of memory. A round is two units, so that the arithmetic of one hides the other's latency;
// where they come from and go to, seen from the tile's begin, is a table.
//
// float32 is scaled by a power of two on its way to float16 (split.cuh says how far that goes). The
// scale is that of the stage before as long as it fits: all threads note the largest magnitude, and
// if it does not, the stage is read and converted again. Units with elements too small for the
// scale are counted; they bound the error of the tile. A stage with a NaN, an infinity or a
// magnitude beyond 2^+-60 gets the scale NaN, and all that comes of it is computed again.
#pragma once

#include "conv_weights.cuh"
#include "hopper.cuh"

namespace kw {

// What the consumers are told of a stage: what undoes its scale, and, times a weight's scale, the
// magnitude below which a result is computed again.
struct alignas(8) ConvStage {
  float down;
  float doubt;
};

template <class S>
struct ConvBarriers {
  hopper::Barrier full[S::kStages];
  hopper::Barrier empty[S::kStages];
  hopper::Barrier weights;
};

// A tile of a block: its channels (of kChannelTiles), and its first place.
struct ConvItem {
  int64_t sample;
  int channels;
  int z, y, x;

  template <class S>
  static __device__ __forceinline__ ConvItem at(int64_t index, S) {
    ConvItem item;
    const auto all = static_cast<uint32_t>(index);
    item.channels = static_cast<int>(all % S::kChannelTiles);
    const uint32_t rest = all / S::kChannelTiles;
    item.x = static_cast<int>(rest % S::kTilesX) * S::kBlockW;
    item.y = static_cast<int>(rest / S::kTilesX % S::kTilesY) * S::kBlockH;
    item.z = static_cast<int>(rest / (S::kTilesX * S::kTilesY) % S::kTilesZ) * S::kBlockD;
    item.sample = rest / S::kPlaceTiles;
    return item;
  }
};

// Where things lie in the block's shared memory, in bytes.
template <class Loop, class S>
struct ConvMemory {
  static constexpr int kPlane = S::kChunks * S::kPlane * 16;
  static constexpr int kStage = Loop::kPlanes * kPlane;
  // A tile of several stages goes through them again for every phase.
  static constexpr bool kRevisits = S::kPhases > 1 && S::kSteps > 1;
  static constexpr int kVisits = kRevisits ? S::kPhases : 1;
  static constexpr int kWeightsPlane = 2 * S::kDepthSteps * S::kBlockChannels * 16;
  static constexpr int kWeightsStep = Loop::kPlanes * kWeightsPlane;  // of one stage, all phases
  static constexpr int kRingPlane =
      2 * (kRevisits ? S::kMostDepthSteps : S::kDepthSteps) * S::kBlockChannels * 16;
  static constexpr int kRing = Loop::kPlanes * kRingPlane;
  static constexpr int kAtOnce = S::kUnits > 128 ? 2 : 1;  // units of a thread's round
  static constexpr int kRounds = (S::kUnits + kAtOnce * 128 - 1) / (kAtOnce * 128);
  static constexpr int kRaw = Loop::kScaled ? S::kAhead * kAtOnce * 128 * 32 : 0;
  static constexpr int kUnits = 256 / S::kEpilogueThreads;  // that run an epilogue at once
  static constexpr int kTile = S::kTileChannels * S::kTilePitch * 4;

  static constexpr int kWeightsAt = S::kStages * kStage;
  static constexpr int kRawAt =
      kWeightsAt + (S::kResident != 0 ? S::kSteps * kWeightsStep : S::kStages * kRing);
  static constexpr int kTilesAt = kRawAt + kRaw;
  static constexpr int kFactorsAt = kTilesAt + kUnits * kTile;
  static constexpr int kTableAt = kFactorsAt + kUnits * S::kTileChannels * 4;
  static constexpr int kHaloAt = (kTableAt + (S::kDepthSteps + S::kPhases + 1) * 4 + 7) / 8 * 8;
  static constexpr int kScalesAt = kHaloAt + S::kHalo * 8;
  static constexpr int kAll =
      kScalesAt + (Loop::kScaled ? S::kChannelTiles * S::kBlockChannels * 8 : 0);
};

namespace detail {

// Four bytes so far from `to` and `from`; zeros, whatever `from` is, if it is outside.
template <int kTo, int64_t kFrom>
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool inside) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.eq.u32 outside, %2, 0;\n"
      "cp.async.ca.shared.global [%0 + %3], [%1 + %4], 4, outside;\n"
      "}\n" ::"r"(to),
      "l"(from), "r"(static_cast<uint32_t>(inside)), "n"(kTo), "n"(kFrom)
      : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A run of bytes into shared memory; the barrier counts them.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, uint32_t bytes,
                                           hopper::Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(hopper::shared_address(to)),
      "l"(from), "r"(bytes), "r"(hopper::shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void fence_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(hopper::Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper::shared_address(&barrier))
               : "memory");
}

}  // namespace detail

// What the feeding warps tell each other about a stage, by turns in two places.
struct ConvVote {
  float most[2][4];
  unsigned smalls[2][4];
};

template <class Loop, class S>
struct ConvFeeder {
  using Input = typename Loop::Input;
  using M = ConvMemory<Loop, S>;
  static constexpr int kLanes = S::kLaneChannels;

  const ConvOperands& g;
  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  ConvStage* const stages;
  ConvVote& vote;
  const int64_t items;
  const int thread = static_cast<int>(threadIdx.x);

  float up = 0x1p12f;
  float down = 0x1p-12f;
  uint32_t turn = 0;

  // A place of the halo: how far it is in the input from the halo's first one, and in the stage.
  struct alignas(8) Place {
    int from;
    int to;

    __device__ __forceinline__ static Place at(int halo) {
      const int x = halo % S::kHaloW;
      const int y = halo / S::kHaloW % S::kHaloH;
      const int z = halo / (S::kHaloW * S::kHaloH);
      return {(z * S::kInH + y) * S::kInW + x, S::place(z, y, x) * 16};
    }
  };

  // Once, before a barrier of the whole block.
  static __device__ __forceinline__ void tabulate(uint8_t* shared) {
    auto* const table = reinterpret_cast<Place*>(shared + M::kHaloAt);
    for (int i = static_cast<int>(threadIdx.x); i < S::kHalo; i += 384) table[i] = Place::at(i);
  }

  // Of a unit: its chunk of the stage, and its place in the halo.
  static __device__ __forceinline__ int chunk_of(int u) {
    return S::kChunks == 1 ? 0 : static_cast<int>(static_cast<unsigned>(u) / S::kHalo);
  }
  static __device__ __forceinline__ int halo_of(int u) { return u - chunk_of(u) * S::kHalo; }

  __device__ __forceinline__ Place place(int u) const {
    Place found = reinterpret_cast<const Place*>(shared + M::kHaloAt)[halo_of(u)];
    constexpr int kApart = kLanes * S::kInD * S::kInH * S::kInW;
    found.from += chunk_of(u) * kApart;
    found.to += chunk_of(u) * (S::kPlane * 16);
    return found;
  }

  // Elements of a unit that no place ever has, and how far each is from the first.
  KW_FN static constexpr bool never(int lane) { return lane % kLanes >= S::kGroupIn; }
  KW_FN static constexpr int offset(int lane) {
    return lane % kLanes * (S::kInD * S::kInH * S::kInW) + lane / kLanes * S::kDilationW;
  }

  // The input of a stage.
  struct Source {
    const Input* first;  // element of the halo; it may lie before the input
    int x, y, z;
    int channels;  // from here to the end of the group
    bool whole;    // all of it is inside

    __device__ __forceinline__ Source(const ConvOperands& g, const ConvItem& item, int step) {
      constexpr int kWide = S::kHaloW + (S::kPack - 1) * S::kDilationW;
      x = item.x * S::kStepX + S::kFirstX;
      y = item.y * S::kStepY + S::kFirstY;
      z = item.z * S::kStepZ + S::kFirstZ;
      const int before = step * S::kChunks * kLanes;
      channels = S::kGroupIn - before;
      whole = x >= 0 && x + kWide <= S::kInW && y >= 0 && y + S::kHaloH <= S::kInH && z >= 0 &&
              z + S::kHaloD <= S::kInD && channels >= S::kChunks * min(kLanes, S::kGroupIn);
      const int64_t plane =
          item.sample * S::kCin + item.channels / S::kTilesC * S::kGroupIn + before;
      first = static_cast<const Input*>(g.input) +
              (((plane * S::kInD + z) * S::kInH + y) * S::kInW + x);
    }

    // Whether a tap that shares a unit's chunk meets the input.
    __device__ __forceinline__ bool meets(int u, int tap) const {
      if (whole) return true;
      const auto at = static_cast<unsigned>(halo_of(u));
      const auto column = static_cast<unsigned>(x) + at % S::kHaloW + tap * S::kDilationW;
      const auto row = static_cast<unsigned>(y) + at / S::kHaloW % S::kHaloH;
      const auto depth = static_cast<unsigned>(z) + at / (S::kHaloW * S::kHaloH);
      return column < S::kInW && row < S::kInH && depth < S::kInD;
    }
  };

  // Which elements of a unit are inside of the input.
  struct Inside {
    bool tap[S::kPack];
    int channels;

    __device__ __forceinline__ Inside(const Source& source, int u) {
#pragma unroll
      for (int t = 0; t < S::kPack; ++t) tap[t] = u < S::kUnits && source.meets(u, t);
      channels = source.channels - chunk_of(u) * kLanes;
    }
    __device__ __forceinline__ bool has(int lane) const {
      constexpr bool kFull = S::kGroupIn % (S::kChunks * kLanes) == 0;
      return tap[lane / kLanes] && (kFull || lane % kLanes < channels);
    }
  };

  __device__ __forceinline__ static Input read(const Source& source, const Inside& inside, int from,
                                               int lane) {
    return !never(lane) && inside.has(lane) ? source.first[from + offset(lane)] : Input{};
  }

  // The rounds in the order in which they are copied.
  int64_t ahead_index = hopper::block_index();
  int ahead_stage = 0;  // of the tile, each visit's
  int ahead_round = 0;
  Source ahead{g, ConvItem::at(ahead_index, S{}), 0};

  __device__ __forceinline__ void advance() {
    if (++ahead_round < M::kRounds) return;
    ahead_round = 0;
    if (++ahead_stage == M::kVisits * S::kSteps) {
      ahead_stage = 0;
      ahead_index += hopper::block_count();
    }
    ahead = Source(g, ConvItem::at(ahead_index, S{}), ahead_stage % S::kSteps);
  }

  __device__ __forceinline__ float* raw(int slot) const {
    return reinterpret_cast<float*>(shared + M::kRawAt) + slot * (M::kAtOnce * 1024) + thread;
  }

  // The elements of a unit from this lane on.
  template <int kUnit, int kLane>
  __device__ __forceinline__ void copy_lanes(uint32_t to, const Input* from,
                                             const Inside& inside) const {
    if constexpr (kLane < 8) {
      if constexpr (!never(kLane)) {
        constexpr int kTo = (kUnit * 8 + kLane) * 512;
        constexpr int64_t kFrom = int64_t{offset(kLane)} * sizeof(Input);
        detail::copy_async<kTo, kFrom>(to, from, inside.has(kLane));
      }
      copy_lanes<kUnit, kLane + 1>(to, from, inside);
    }
  }

  template <int kUnit>
  __device__ __forceinline__ void copy_units(uint32_t to) const {
    if constexpr (kUnit < M::kAtOnce) {
      const int u = (ahead_round * M::kAtOnce + kUnit) * 128 + thread;
      if (S::kUnits % (M::kAtOnce * 128) == 0 || u < S::kUnits) {
        copy_lanes<kUnit, 0>(to, ahead.first + place(u).from, Inside(ahead, u));
      }
      copy_units<kUnit + 1>(to);
    }
  }

  __device__ __forceinline__ void copy_next(int slot) {
    if (ahead_index < items) {
      copy_units<0>(hopper::shared_address(raw(slot)));
      advance();
    }
    detail::commit_copies();
  }

  // What a thread has seen of a stage.
  struct Seen {
    float most = 0.0f;
    unsigned smalls = 0;
  };

  __device__ __forceinline__ void store(uint8_t* stage, int to, const float (&x)[8], Seen& seen) {
    uint32_t planes[4][Loop::kPlanes];
    const uint32_t bound = 2 * __float_as_uint(split::kSmallest<Loop::kPlanes> * down) - 1;
    uint32_t least = 0xffffffffu;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      split::split_pair<Loop::kPlanes>(float2{x[2 * pair] * up, x[2 * pair + 1] * up},
                                       planes[pair]);
    }
    float most[4];
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      const float size = fabsf(x[lane]);
      most[lane % 4] = lane < 4 ? size : maximum(most[lane % 4], size);
      least = min(least, 2 * __float_as_uint(x[lane]) - 1);  // the sign is gone, zero the largest
    }
    seen.most = maximum(seen.most, maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
    seen.smalls += least < bound ? 8 : 0;
#pragma unroll
    for (int p = 0; p < Loop::kPlanes; ++p) {
      *reinterpret_cast<uint4*>(stage + p * M::kPlane + to) = {planes[0][p], planes[1][p],
                                                               planes[2][p], planes[3][p]};
    }
  }

  // All threads get the largest magnitude and the number of small elements of the stage.
  __device__ __forceinline__ Seen agree(const Seen& own) {
    const uint32_t most = split::warp_max(__float_as_uint(own.most) & 0x7fffffffu);
    const unsigned smalls = __reduce_add_sync(0xffffffff, own.smalls);
    turn ^= 1;
    if (thread % 32 == 0) {
      vote.most[turn][thread / 32] = __uint_as_float(most);
      vote.smalls[turn][thread / 32] = smalls;
    }
    hopper::sync_threads<128>(3);
    Seen all;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      all.most = maximum(all.most, vote.most[turn][w]);
      all.smalls += vote.smalls[turn][w];
    }
    return all;
  }

  // Converts what was copied; if the scale does not fit, all of the stage again with another one.
  __device__ __forceinline__ ConvStage convert(uint8_t* stage, const ConvItem& item, int step,
                                               int& slot) {
    Seen seen;
#pragma unroll 1
    for (int round = 0; round < M::kRounds; ++round) {
      detail::wait_copies<S::kAhead - 1>();
      const float* const from = raw(slot);
      float x[M::kAtOnce][8];
#pragma unroll
      for (int n = 0; n < M::kAtOnce; ++n) {
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) {
          x[n][lane] = never(lane) ? 0.0f : from[(n * 8 + lane) * 128];
        }
      }
      copy_next(slot);
      slot = slot + 1 == S::kAhead ? 0 : slot + 1;
#pragma unroll
      for (int n = 0; n < M::kAtOnce; ++n) {
        const int u = (round * M::kAtOnce + n) * 128 + thread;
        if (S::kUnits % (M::kAtOnce * 128) != 0 && u >= S::kUnits) continue;
        store(stage, place(u).to, x[n], seen);
      }
    }
    detail::fence_products();
    Seen all = agree(seen);
    const int exponent = static_cast<int>(__float_as_uint(all.most) >> 23) - 127;
    const bool wild = all.most != 0.0f && (exponent > 60 || exponent < -60);
    const float scaled = all.most * up;
    if (all.most != 0.0f && !wild && (scaled >= 0x1p15f || scaled < 0x1p9f)) {
      up = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
      down = __uint_as_float(static_cast<uint32_t>(127 - 13 + exponent) << 23);
      seen = Seen{};
      const Source source(g, item, step);
#pragma unroll 1
      for (int u = thread; u < S::kUnits; u += 128) {
        const Place where = place(u);
        const Inside inside(source, u);
        float again[8];
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) again[lane] = read(source, inside, where.from, lane);
        store(stage, where.to, again, seen);
      }
      detail::fence_products();
      all = agree(seen);
    }
    if (wild) return {__builtin_nanf(""), __builtin_nanf("")};
    const float residue = static_cast<float>(all.smalls) * 0x1p-25f;
    return {down, residue * down * split::kDoubtPerResidue<Loop::kPlanes>};
  }

  // What is in memory, as it is.
  __device__ __forceinline__ void copy_halves(uint8_t* stage, const ConvItem& item, int step) {
    constexpr int kAtOnce = 4;
    const Source source(g, item, step);
#pragma unroll 1
    for (int first = 0; first < S::kUnits; first += kAtOnce * 128) {
      uint32_t x[kAtOnce][4];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int u = first + n * 128 + thread;
        const int from = u < S::kUnits ? place(u).from : 0;
        const Inside inside(source, u);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint32_t low = read(source, inside, from, 2 * pair).bits;
          x[n][pair] = low | uint32_t{read(source, inside, from, 2 * pair + 1).bits} << 16;
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int u = first + n * 128 + thread;
        if (u < S::kUnits) {
          *reinterpret_cast<uint4*>(stage + place(u).to) = {x[n][0], x[n][1], x[n][2], x[n][3]};
        }
      }
    }
    detail::fence_products();
    hopper::sync_threads<128>(3);
  }

  // A stage's weights, of all phases or of one.
  __device__ __forceinline__ void fetch_weights(int stage, const ConvItem& item, int visit,
                                                int step) {
    uint8_t* const to = shared + M::kWeightsAt + stage * M::kRing;
    const auto* const from = static_cast<const uint8_t*>(g.packed) +
                             (int64_t{item.channels} * S::kSteps + step) * M::kWeightsStep;
    int before = 0;
    int bytes = M::kRingPlane;
    if constexpr (M::kRevisits) {
      before = S::steps_before(visit) * 2 * S::kBlockChannels * 16;
      bytes = S::depth_steps(visit) * 2 * S::kBlockChannels * 16;
    }
    hopper::arrive_expecting(barriers.full[stage], static_cast<uint32_t>(Loop::kPlanes * bytes));
    if (bytes == 0) return;
#pragma unroll
    for (int p = 0; p < Loop::kPlanes; ++p) {
      detail::copy_bytes(to + p * M::kRingPlane, from + p * M::kWeightsPlane + before,
                         static_cast<uint32_t>(bytes), barriers.full[stage]);
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (S::kResident != 0) {
      if (thread == 0 && hopper::block_index() < items) {
        constexpr int kBytes = S::kSteps * M::kWeightsStep;
        const auto* const from = static_cast<const uint8_t*>(g.packed) +
                                 int64_t{hopper::block_index() % S::kChannelTiles} * kBytes;
        hopper::arrive_expecting(barriers.weights, kBytes);
        detail::copy_bytes(shared + M::kWeightsAt, from, kBytes, barriers.weights);
      }
    }
    if constexpr (Loop::kScaled) {
#pragma unroll 1
      for (int slot = 0; slot < S::kAhead; ++slot) copy_next(slot);
    }
    int slot = 0;
    int at = 0;
    uint32_t phase = 1;
#pragma unroll 1
    for (int64_t index = hopper::block_index(); index < items; index += hopper::block_count()) {
      const ConvItem item = ConvItem::at(index, S{});
#pragma unroll 1
      for (int turn_of = 0; turn_of < M::kVisits * S::kSteps; ++turn_of) {
        const int visit = turn_of / S::kSteps;
        const int step = turn_of % S::kSteps;
        hopper::wait(barriers.empty[at], phase);
        if (S::kResident == 0 && thread == 0) fetch_weights(at, item, visit, step);
        uint8_t* const stage = shared + at * M::kStage;
        if constexpr (Loop::kScaled) {
          const ConvStage found = convert(stage, item, step, slot);
          if (thread == 0) stages[at] = found;
        } else {
          copy_halves(stage, item, step);
        }
        if (thread == 0) detail::arrive(barriers.full[at]);
        if (++at == S::kStages) {
          at = 0;
          phase ^= 1;
        }
      }
    }
    detail::wait_copies<0>();
  }
};

}  // namespace kw
