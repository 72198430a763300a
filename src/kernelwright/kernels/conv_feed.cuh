// The feeding side of a convolution: NCHW input into halo tiles that the tensor cores read.
//
// Four warps go through the tiles of their block, stage by stage. A stage is a list of units, 16
// bytes each: eight channels of one place of the halo. A thread has a unit in every 128 and takes
// two of them in a round; the elements of the next round are on their way into registers while one
// is converted. What lies outside of the input is zero, which is also the padding. Elements of a
// unit are neighbours of the other threads' units, so that a warp reads runs of memory. Where units
// come from and go to, seen from the tile's begin, is a table.
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
  // Of the resident weights, or of the slots of a stream of them.
  hopper::Barrier weights[S::kSlots];
  hopper::Barrier read[S::kSlots];
};

// A tile of a block: its channels (of kChannelTiles), and its first place.
struct ConvItem {
  int64_t sample;
  int channels;
  int z, y, x;

  template <class S>
  static __device__ __forceinline__ ConvItem at(int index, S) {
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
  static constexpr int kVisits = S::kPhases > 1 && S::kSteps > 1 ? S::kPhases : 1;
  static constexpr int kWeightsPlane = 2 * S::kDepthSteps * S::kBlockChannels * 16;
  static constexpr int kWeightsStep = Loop::kPlanes * kWeightsPlane;  // of one stage, all phases
  static constexpr int kSlotPlane = 2 * S::kSlotSteps * S::kBlockChannels * 16;
  static constexpr int kSlot = Loop::kPlanes * kSlotPlane;
  static constexpr int kAtOnce = S::kUnits > 128 ? 2 : 1;  // units of a thread's round
  static constexpr int kRounds = (S::kUnits + kAtOnce * 128 - 1) / (kAtOnce * 128);
  static constexpr int kUnits = 256 / S::kEpilogueThreads;  // that run an epilogue at once
  static constexpr int kTile = S::kTileChannels * S::kTilePitch * 4;

  static constexpr int kWeightsAt = S::kStages * kStage;
  static constexpr int kTilesAt =
      kWeightsAt + (S::kResident != 0 ? S::kSteps * kWeightsStep : S::kSlots * kSlot);
  static constexpr int kScratchAt = kTilesAt + kUnits * kTile;
  static constexpr int kTableAt = kScratchAt + kUnits * S::kScratch * 4;
  static constexpr int kHaloAt = (kTableAt + (S::kDepthSteps + S::kPhases + 1) * 4 + 7) / 8 * 8;
  static constexpr int kScalesAt = kHaloAt + S::kHalo * 8;
  static constexpr int kAll =
      kScalesAt + (Loop::kScaled ? S::kChannelTiles * S::kBlockChannels * 8 : 0);
};

namespace detail {

__device__ __forceinline__ float read_input(const float* at) {
  return __ldg(at);
}
template <class Half>
__device__ __forceinline__ Half read_input(const Half* at) {
  return {__ldg(&at->bits)};
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

// Whether a barrier has passed a phase.
__device__ __forceinline__ bool passed(hopper::Barrier& barrier, uint32_t phase) {
  int result;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(result)
      : "r"(hopper::shared_address(&barrier)), "r"(phase)
      : "memory");
  return result != 0;
}

__device__ __forceinline__ void fence_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(hopper::Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper::shared_address(&barrier))
               : "memory");
}

}  // namespace detail

// The depth steps of a phase: in one list with those of the other phases, multiplied in groups. A
// group is what is promoted at once, or what a slot of streaming weights holds.
template <class Loop, class S>
struct ConvSteps {
  static constexpr bool kPromotes = Loop::kPlanes == 2 && S::kPromote != 0;
  static constexpr int kGroup = kPromotes           ? S::kPromote
                                : S::kResident == 0 ? S::kSlotSteps
                                                    : 1 << 20;
  static_assert(S::kResident != 0 || kGroup <= S::kSlotSteps, "a group is a slot");

  int before;  // of the phases before it
  int count;
  const uint32_t* list;

  // Of a group: all of nearly the same length.
  KW_FN static constexpr int length_of(int count) {
    const int groups = (count + kGroup - 1) / kGroup;
    return groups == 0 ? 1 : (count + groups - 1) / groups;
  }
  __device__ __forceinline__ int length() const { return length_of(count); }

  __device__ __forceinline__ static ConvSteps of(const uint8_t* shared, int phase) {
    if constexpr (!S::kListed) return {0, S::kDepthSteps, nullptr};
    const auto* const table =
        reinterpret_cast<const uint32_t*>(shared + ConvMemory<Loop, S>::kTableAt);
    const auto* const starts = table + S::kDepthSteps;
    const int first = S::kPhases == 1 ? 0 : static_cast<int>(starts[phase]);
    const int end = S::kPhases == 1 ? S::kDepthSteps : static_cast<int>(starts[phase + 1]);
    return {first, end - first, table + first};
  }
};

// One thread fetches the weights: all of them at once if they are resident, or group after group
// into slots that both multiplying warpgroups have read.
template <class Loop, class S>
struct ConvStream {
  using M = ConvMemory<Loop, S>;
  using Steps = ConvSteps<Loop, S>;

  const uint8_t* const packed;
  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  const int items;

  int index = hopper::block_index();
  int phase = 0;
  int step = 0;
  int from = 0;
  int slot = 0;
  uint32_t parity = 1;

  __device__ __forceinline__ void begin() {
    if (S::kResident == 0 || index >= items) return;
    constexpr int kBytes = S::kSteps * M::kWeightsStep;
    const int64_t tile = index % S::kChannelTiles;
    hopper::arrive_expecting(barriers.weights[0], kBytes);
    detail::copy_bytes(shared + M::kWeightsAt, packed + tile * kBytes, kBytes, barriers.weights[0]);
    index = items;
  }

  // Fetches what there is a slot for, without waiting.
  __device__ __forceinline__ void go_on() {
    if constexpr (S::kResident != 0) return;
    while (index < items && detail::passed(barriers.read[slot], parity)) fetch();
  }

  __device__ __forceinline__ void fetch() {
    const Steps steps = Steps::of(shared, phase);
    if (steps.count > 0) {
      const int count = min(steps.length(), steps.count - from);
      const int64_t tile = index % S::kChannelTiles;
      const uint8_t* const first = packed + (tile * S::kSteps + step) * M::kWeightsStep +
                                   int64_t{steps.before + from} * (2 * S::kBlockChannels * 16);
      const auto bytes = static_cast<uint32_t>(count * 2 * S::kBlockChannels * 16);
      hopper::Barrier& full = barriers.weights[slot];
      hopper::arrive_expecting(full, bytes * Loop::kPlanes);
#pragma unroll
      for (int p = 0; p < Loop::kPlanes; ++p) {
        detail::copy_bytes(shared + M::kWeightsAt + slot * M::kSlot + p * M::kSlotPlane,
                           first + p * M::kWeightsPlane, bytes, full);
      }
      if (++slot == S::kSlots) {
        slot = 0;
        parity ^= 1;
      }
      from += count;
      if (from < steps.count) return;
    }
    from = 0;
    if (++step < S::kSteps) return;
    step = 0;
    if (++phase < S::kPhases) return;
    phase = 0;
    index += hopper::block_count();
  }
};

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
  const int items;
  const int thread = static_cast<int>(threadIdx.x);

  float up = 0x1p12f;
  float down = 0x1p-12f;
  uint32_t turn = 0;

  // A place of the halo: its coordinates, and how far it is in the stage.
  struct alignas(8) Place {
    int at;
    int to;

    __device__ __forceinline__ Place(int halo) {
      const int x = halo % S::kHaloW;
      const int y = halo / S::kHaloW % S::kHaloH;
      const int z = halo / (S::kHaloW * S::kHaloH);
      at = x | y << 10 | z << 20;
      to = S::place(z, y, x) * 16;
    }
    __device__ __forceinline__ int x() const { return at & 1023; }
    __device__ __forceinline__ int y() const { return at >> 10 & 1023; }
    __device__ __forceinline__ int z() const { return at >> 20; }
  };
  static_assert(S::kHaloW < 1024 && S::kHaloH < 1024 && S::kHaloD < 1024, "ten bits each");

  // Once, before a barrier of the whole block.
  static __device__ __forceinline__ void tabulate(uint8_t* shared) {
    auto* const table = reinterpret_cast<Place*>(shared + M::kHaloAt);
    for (int i = static_cast<int>(threadIdx.x); i < S::kHalo; i += 384) table[i] = Place(i);
  }

  __device__ __forceinline__ Place place(int u) const {
    Place found = reinterpret_cast<const Place*>(shared + M::kHaloAt)[u % S::kHalo];
    found.to += u / S::kHalo * (S::kPlane * 16);
    return found;
  }

  // Elements of a unit that no place ever has.
  KW_FN static constexpr bool never(int lane) { return lane % kLanes >= S::kGroupIn; }

  // The input of a stage: its halo's first element, which may lie before the input.
  struct Source {
    const Input* first;
    int x, y, z;
    int channels;  // from here to the end of the group

    __device__ __forceinline__ Source(const ConvOperands& g, const ConvItem& item, int step) {
      x = item.x * S::kStepX + S::kFirstX;
      y = item.y * S::kStepY + S::kFirstY;
      z = item.z * S::kStepZ + S::kFirstZ;
      const int before = step * S::kChunks * kLanes;
      channels = S::kGroupIn - before;
      const int64_t plane =
          item.sample * S::kCin + item.channels / S::kTilesC * S::kGroupIn + before;
      first = static_cast<const Input*>(g.input) +
              (((plane * S::kInD + z) * S::kInH + y) * S::kInW + x);
    }
  };

  // The elements of a unit; zeros for those that do not exist.
  __device__ __forceinline__ void read(const Source& source, int u, Input (&x)[8]) const {
    constexpr bool kAllChannels = S::kAllChunks % S::kChunks == 0 && S::kGroupIn % kLanes == 0;
    constexpr int kChannel = S::kInD * S::kInH * S::kInW;
    const Place where = place(u);
    const int group = u / S::kHalo;
    const int column = source.x + where.x();
    const bool row = (S::kUnits % 128 == 0 || u < S::kUnits) &&
                     static_cast<unsigned>(source.y + where.y()) < S::kInH &&
                     static_cast<unsigned>(source.z + where.z()) < S::kInD;
    const Input* const from =
        source.first +
        (group * kLanes * kChannel + (where.z() * S::kInH + where.y()) * S::kInW + where.x());
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      const int right = lane / kLanes * S::kDilationW;
      const bool has = row && static_cast<unsigned>(column + right) < S::kInW &&
                       (kAllChannels || group * kLanes + lane % kLanes < source.channels);
      x[lane] = !never(lane) && has ? detail::read_input(from + (lane % kLanes * kChannel + right))
                                    : Input{};
    }
  }

  // Two units of a thread, and which they are: the next to be read.
  struct Round {
    Input x[M::kAtOnce][8];
  };
  int ahead_index = hopper::block_index();
  int ahead_stage = 0;  // of the tile, each visit's
  int ahead_round = 0;
  Source ahead{g, ConvItem::at(ahead_index, S{}), 0};

  __device__ __forceinline__ void load(Round& round) {
    if (ahead_index >= items) return;
#pragma unroll
    for (int n = 0; n < M::kAtOnce; ++n) {
      read(ahead, (ahead_round * M::kAtOnce + n) * 128 + thread, round.x[n]);
    }
    if (++ahead_round < M::kRounds) return;
    ahead_round = 0;
    if (++ahead_stage == M::kVisits * S::kSteps) {
      ahead_stage = 0;
      ahead_index += hopper::block_count();
    }
    ahead = Source(g, ConvItem::at(ahead_index, S{}), ahead_stage % S::kSteps);
  }

  // What a thread has seen of a stage.
  struct Seen {
    float most = 0.0f;
    unsigned smalls = 0;
  };

  // A unit as halves, in planes if it is float32.
  __device__ __forceinline__ void store(uint8_t* stage, int to, const Input (&x)[8],
                                        [[maybe_unused]] Seen& own) const {
    uint32_t planes[4][Loop::kPlanes];
    if constexpr (Loop::kScaled) {
      const uint32_t bound = 2 * __float_as_uint(split::kSmallest<Loop::kPlanes> * down) - 1;
      uint32_t least = 0xffffffffu;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        split::split_pair<Loop::kPlanes>(float2{x[2 * pair] * up, x[2 * pair + 1] * up},
                                         planes[pair]);
      }
#pragma unroll
      for (int lane = 0; lane < 8; ++lane) {
        own.most = maximum(own.most, fabsf(x[lane]));
        least = min(least, 2 * __float_as_uint(x[lane]) - 1);  // no sign, and zero is the largest
      }
      own.smalls += least < bound ? 8 : 0;
    } else {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        planes[pair][0] = uint32_t{x[2 * pair].bits} | uint32_t{x[2 * pair + 1].bits} << 16;
      }
    }
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

  // What the threads have seen of a stage tells its scale; if that is not the one it was converted
  // with, the stage is read and converted again.
  __device__ __forceinline__ ConvStage settle(uint8_t* stage) {
    Seen all = agree(seen);
    const int exponent = static_cast<int>(__float_as_uint(all.most) >> 23) - 127;
    const bool wild = all.most != 0.0f && (exponent > 60 || exponent < -60);
    const float scaled = all.most * up;
    if (all.most != 0.0f && !wild && (scaled >= 0x1p15f || scaled < 0x1p9f)) {
      up = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
      down = __uint_as_float(static_cast<uint32_t>(127 - 13 + exponent) << 23);
      seen = Seen{};
      const Source source(g, ConvItem::at(index, S{}), tile_stage % S::kSteps);
#pragma unroll 1
      for (int u = thread; u < S::kUnits; u += 128) {
        Input again[8];
        read(source, u, again);
        store(stage, place(u).to, again, seen);
      }
      detail::fence_products();
      all = agree(seen);
    }
    seen = Seen{};
    const float residue = static_cast<float>(all.smalls) * 0x1p-25f;
    return {wild ? __builtin_nanf("") : down,
            residue * down * split::kDoubtPerResidue<Loop::kPlanes>};
  }

  // Where the conversion is.
  int index = hopper::block_index();
  int tile_stage = 0;
  int round_of = 0;
  int at = 0;
  uint32_t phase = 1;
  Seen seen;

  ConvStream<Loop, S> stream{static_cast<const uint8_t*>(g.packed), shared, barriers, items};

  __device__ __forceinline__ void await_stage() {
    if (S::kResident == 0 && thread == 0) {
      while (!detail::passed(barriers.empty[at], phase)) stream.go_on();
    }
    hopper::wait(barriers.empty[at], phase);
  }

  // Converts a round and begins to read another one in its place.
  __device__ __forceinline__ void take(Round& round) {
    uint8_t* const stage = shared + at * M::kStage;
    if (thread == 0) stream.go_on();
    if (round_of == 0) await_stage();
#pragma unroll
    for (int n = 0; n < M::kAtOnce; ++n) {
      const int u = (round_of * M::kAtOnce + n) * 128 + thread;
      if (S::kUnits % (M::kAtOnce * 128) != 0 && u >= S::kUnits) continue;
      store(stage, place(u).to, round.x[n], seen);
    }
    load(round);
    if (++round_of < M::kRounds) return;
    detail::fence_products();
    if constexpr (Loop::kScaled) {
      const ConvStage found = settle(stage);
      if (thread == 0) stages[at] = found;
    } else {
      hopper::sync_threads<128>(3);
    }
    if (thread == 0) detail::arrive(barriers.full[at]);
    round_of = 0;
    if (++at == S::kStages) {
      at = 0;
      phase ^= 1;
    }
    if (++tile_stage == M::kVisits * S::kSteps) {
      tile_stage = 0;
      index += hopper::block_count();
    }
  }

  __device__ __forceinline__ void run() {
    Round first;
    Round second;
    if (thread == 0) {
      stream.begin();
      stream.go_on();
    }
    load(first);
    load(second);
    while (index < items) {
      take(first);
      if (index >= items) break;
      take(second);
    }
    if (S::kResident == 0 && thread == 0) {
      while (stream.index < items) stream.go_on();
    }
  }
};

}  // namespace kw
