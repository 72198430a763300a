// The input of a convolution on its way to the feeding threads: eight elements for each 16 bytes of
// a stage, which is a unit. A thread has every 128th of them.
//
// ConvBoxes: where rows of the input are multiples of 16 bytes, one thread has the copy engine
// bring boxes of it, some channels of some rows of the halo each, kAhead boxes ahead; what lies
// outside of the input comes as zeros, which is also the padding. ConvCopies: otherwise each thread
// copies the elements of its own units, four bytes at a time, kAhead rounds ahead, into shared
// memory that only it reads. Elements of a unit are neighbours of the other threads' units in both,
// so that a warp reads all banks at once. Where units come from and go to is a table in shared
// memory for copies; for boxes, of which all are alike, a thread keeps it in registers.
#pragma once

#include "conv_memory.cuh"

namespace kw {

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

__device__ __forceinline__ void arrive(hopper::Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper::shared_address(&barrier))
               : "memory");
}

}  // namespace detail

// The elements of a unit; those that are none are zeros.
struct ConvUnit {
  float x[8];
};

// The halo of a stage in the input.
template <class Loop, class S>
struct ConvHalo {
  using Input = typename Loop::Input;
  using M = ConvMemory<Loop, S>;
  static constexpr int kLanes = S::kLaneChannels;

  const Input* first;  // element of the halo; it may lie before the input
  int x, y, z;
  int channels;  // from here to the end of the group
  bool whole;    // all of it is inside

  __device__ __forceinline__ ConvHalo(const ConvOperands& g, const ConvItem& item, int step) {
    constexpr int kWide = S::kHaloW + (S::kPack - 1) * S::kDilationW;
    x = item.x * S::kStepX + S::kFirstX;
    y = item.y * S::kStepY + S::kFirstY;
    z = item.z * S::kStepZ + S::kFirstZ;
    const int before = step * S::kChunks * kLanes;
    channels = S::kGroupIn - before;
    whole = x >= 0 && x + kWide <= S::kInW && y >= 0 && y + S::kHaloH <= S::kInH && z >= 0 &&
            z + S::kHaloD <= S::kInD && channels >= S::kChunks * min(kLanes, S::kGroupIn);
    const int64_t plane = item.sample * S::kCin + item.channels / S::kTilesC * S::kGroupIn + before;
    first =
        static_cast<const Input*>(g.input) + (((plane * S::kInD + z) * S::kInH + y) * S::kInW + x);
  }

  // Of a unit: its chunk of the stage, and its place in the halo.
  static __device__ __forceinline__ int chunk_of(int u) {
    return S::kChunks == 1 ? 0 : static_cast<int>(static_cast<unsigned>(u) / S::kHalo);
  }
  static __device__ __forceinline__ int place_of(int u) { return u - chunk_of(u) * S::kHalo; }

  // Elements of a unit that no place ever has, and how far each is from the first.
  KW_FN static constexpr bool never(int lane) { return lane % kLanes >= S::kGroupIn; }
  KW_FN static constexpr int offset(int lane) {
    return lane % kLanes * (S::kInD * S::kInH * S::kInW) + lane / kLanes * S::kDilationW;
  }

  // A unit: how far it is in the input from the halo's first place, and in the stage, in bytes.
  struct alignas(8) Way {
    int from;
    int to;
  };

  static __device__ __forceinline__ Way way(int u) {
    const int place = place_of(u);
    const int x = place % S::kHaloW;
    const int y = place / S::kHaloW % S::kHaloH;
    const int z = place / (S::kHaloW * S::kHaloH);
    constexpr int kApart = kLanes * S::kInD * S::kInH * S::kInW;
    return {(z * S::kInH + y) * S::kInW + x + chunk_of(u) * kApart,
            (S::place(z, y, x) + chunk_of(u) * S::kPlane) * 16};
  }

  // Whether a tap that shares a unit's chunk meets the input.
  __device__ __forceinline__ bool meets(int u, int tap) const {
    if (whole) return true;
    const auto at = static_cast<unsigned>(place_of(u));
    const auto column = static_cast<unsigned>(x) + at % S::kHaloW + tap * S::kDilationW;
    const auto row = static_cast<unsigned>(y) + at / S::kHaloW % S::kHaloH;
    const auto depth = static_cast<unsigned>(z) + at / (S::kHaloW * S::kHaloH);
    return column < S::kInW && row < S::kInH && depth < S::kInD;
  }

  // Which elements of a unit are inside of the input.
  struct Inside {
    bool tap[S::kPack];
    int channels;

    __device__ __forceinline__ Inside(const ConvHalo& halo, int u) {
#pragma unroll
      for (int t = 0; t < S::kPack; ++t) tap[t] = u < S::kUnits && halo.meets(u, t);
      channels = halo.channels - chunk_of(u) * kLanes;
    }
    __device__ __forceinline__ bool has(int lane) const {
      constexpr bool kFull = S::kGroupIn % (S::kChunks * kLanes) == 0;
      return tap[lane / kLanes] && (kFull || lane % kLanes < channels);
    }
  };

  __device__ __forceinline__ Input read(const Inside& inside, int from, int lane) const {
    return !never(lane) && inside.has(lane) ? first[from + offset(lane)] : Input{};
  }

  // Units as they are in memory, without a copy in between: what is rare, and halves.
  __device__ __forceinline__ ConvUnit unit(int u, Way way) const {
    const Inside inside(*this, u);
    ConvUnit found;
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) found.x[lane] = read(inside, way.from, lane);
    return found;
  }
};

// Elements that each thread copies for itself.
template <class Loop, class S>
struct ConvCopies {
  using Input = typename Loop::Input;
  using M = ConvMemory<Loop, S>;
  using Halo = ConvHalo<Loop, S>;
  using Way = typename Halo::Way;

  const ConvOperands& g;
  uint8_t* const shared;
  const int64_t items;
  const int thread = static_cast<int>(threadIdx.x);

  int slot = 0;
  // The rounds in the order in which they are copied.
  int64_t ahead_index = hopper::block_index();
  int ahead_stage = 0;  // of the tile, each visit's
  int ahead_round = 0;
  Halo ahead;

  __device__ __forceinline__ ConvCopies(const ConvOperands& g, const CUtensorMap*, uint8_t* shared,
                                        ConvBarriers<S>&, int64_t items)
      : g(g), shared(shared), items(items), ahead(g, ConvItem::at(ahead_index, S{}), 0) {}

  // Once, before a barrier of the whole block: where the places of one chunk are.
  static __device__ __forceinline__ void tabulate(uint8_t* shared) {
    auto* const table = reinterpret_cast<Way*>(shared + M::kHaloAt);
    for (int i = static_cast<int>(threadIdx.x); i < S::kHalo; i += 384) table[i] = Halo::way(i);
  }

  __device__ __forceinline__ Way way(int u) const {
    Way found = reinterpret_cast<const Way*>(shared + M::kHaloAt)[Halo::place_of(u)];
    constexpr int kApart = S::kLaneChannels * S::kInD * S::kInH * S::kInW;
    found.from += Halo::chunk_of(u) * kApart;
    found.to += Halo::chunk_of(u) * (S::kPlane * 16);
    return found;
  }

  // A thread's unit of a round. Threads that are left over in the last one do what others do too.
  __device__ __forceinline__ int own(int round, int n) const {
    const int u = (round * M::kAtOnce + n) * 128 + thread;
    return S::kUnits % (M::kAtOnce * 128) == 0 ? u : u % S::kUnits;
  }

  __device__ __forceinline__ void advance() {
    if (++ahead_round < M::kRounds) return;
    ahead_round = 0;
    if (++ahead_stage == M::kVisits * S::kSteps) {
      ahead_stage = 0;
      ahead_index += hopper::block_count();
    }
    ahead = Halo(g, ConvItem::at(ahead_index, S{}), ahead_stage % S::kSteps);
  }

  __device__ __forceinline__ float* raw(int slot) const {
    return reinterpret_cast<float*>(shared + M::kRawAt) + slot * (M::kAtOnce * 1024) + thread;
  }

  // The elements of a unit from this lane on.
  template <int kUnit, int kLane>
  __device__ __forceinline__ void copy_lanes(uint32_t to, const Input* from,
                                             const typename Halo::Inside& inside) const {
    if constexpr (kLane < 8) {
      if constexpr (!Halo::never(kLane)) {
        constexpr int kTo = (kUnit * 8 + kLane) * 512;
        constexpr int64_t kFrom = int64_t{Halo::offset(kLane)} * sizeof(Input);
        detail::copy_async<kTo, kFrom>(to, from, inside.has(kLane));
      }
      copy_lanes<kUnit, kLane + 1>(to, from, inside);
    }
  }

  template <int kUnit>
  __device__ __forceinline__ void copy_units(uint32_t to) const {
    if constexpr (kUnit < M::kAtOnce) {
      const int u = own(ahead_round, kUnit);
      copy_lanes<kUnit, 0>(to, ahead.first + way(u).from, typename Halo::Inside(ahead, u));
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

  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (int slot = 0; slot < S::kAhead; ++slot) copy_next(slot);
  }

  __device__ __forceinline__ void end() const { detail::wait_copies<0>(); }

  // take(to, units, count) for the units of the stage that is next.
  template <class Take>
  __device__ __forceinline__ void each(const ConvItem&, int, const Take& take) {
#pragma unroll 1
    for (int round = 0; round < M::kRounds; ++round) {
      detail::wait_copies<S::kAhead - 1>();
      const float* const from = raw(slot);
      ConvUnit units[M::kAtOnce];
      int to[M::kAtOnce];
#pragma unroll
      for (int n = 0; n < M::kAtOnce; ++n) {
#pragma unroll
        for (int lane = 0; lane < 8; ++lane) {
          units[n].x[lane] = Halo::never(lane) ? 0.0f : from[(n * 8 + lane) * 128];
        }
        to[n] = way(own(round, n)).to;
      }
      copy_next(slot);
      slot = slot + 1 == S::kAhead ? 0 : slot + 1;
      take(to, units, M::kAtOnce);
    }
  }
};

// Boxes that the copy engine brings.
template <class Loop, class S>
struct ConvBoxes {
  using M = ConvMemory<Loop, S>;
  using Halo = ConvHalo<Loop, S>;
  static constexpr int kLanes = S::kLaneChannels;
  static constexpr int kOfStage = S::kChunks * M::kBoxes;
  // A thread's units of a box, of which kAtOnce are loaded before the first of them is converted:
  // shared memory is busy with products, and takes hundreds of clocks for a load.
  static constexpr int kRounds = (M::kBoxPlaces + 127) / 128;
  static constexpr int kGroups = (kRounds + 3) / 4;
  static constexpr int kAtOnce = (kRounds + kGroups - 1) / kGroups;
  static_assert(kRounds <= 8, "their places are kept in registers");
  static_assert(S::kPlane < 1 << 16 && M::kBoxChannel * 4 < 1 << 16, "as halves of a word");

  const CUtensorMap* const map;
  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  const int64_t items;
  const int thread = static_cast<int>(threadIdx.x);

  // Of each of its units, how many bytes it is from the box's begin, and how many places it is in
  // the stage from those of the box.
  uint32_t ways[kRounds];
  int slot = 0;
  uint32_t parity = 0;
  // What is asked for next: the box of a stage of a tile's visits, and where the tile begins.
  int64_t index = hopper::block_index();
  int turn = 0;
  int box = 0;
  hopper::Box tile;

  __device__ __forceinline__ ConvBoxes(const ConvOperands&, const CUtensorMap* map, uint8_t* shared,
                                       ConvBarriers<S>& barriers, int64_t items)
      : map(map), shared(shared), barriers(barriers), items(items), tile(begin_of(index)) {
#pragma unroll
    for (int n = 0; n < kRounds; ++n) {
      // Threads that are left over in the last round do what others do too.
      const int place = (n * 128 + thread) % M::kBoxPlaces;
      const int x = place % S::kHaloW;
      const int row = place / S::kHaloW;
      const int to = S::place(row / S::kBoxTall, row % S::kBoxTall, x);
      ways[n] = static_cast<uint32_t>((row * M::kBoxWide + x) * 4) | static_cast<uint32_t>(to)
                                                                         << 16;
    }
  }

  static __device__ __forceinline__ void tabulate(uint8_t*) {}

  static __device__ __forceinline__ hopper::Box begin_of(int64_t index) {
    const ConvItem item = ConvItem::at(index, S{});
    const int64_t channel = item.sample * S::kCin + item.channels / S::kTilesC * S::kGroupIn;
    return {{(item.x * S::kStepX + S::kFirstX) & ~3, item.y * S::kStepY + S::kFirstY,
             item.z * S::kStepZ + S::kFirstZ, static_cast<int>(channel)}};
  }

  __device__ __forceinline__ uint8_t* raw(int slot) const {
    return shared + M::kRawAt + slot * M::kBoxSlot;
  }

  // The next box into a slot, by one thread.
  __device__ __forceinline__ void ask(int slot) const {
    if (index >= items) return;
    const int chunk = turn % S::kSteps * S::kChunks + box / M::kBoxes;
    hopper::Box from = tile;
    from.at[1] += M::box_row(box % M::kBoxes);
    from.at[2] += M::box_depth(box % M::kBoxes);
    from.at[3] += chunk * kLanes;
    hopper::arrive_expecting(barriers.come[slot], M::kBoxBytes);
    hopper::copy_box<1>(raw(slot), map, barriers.come[slot], from, hopper::cache_policy(false));
  }

  // Everyone knows which box is next.
  __device__ __forceinline__ void advance() {
    if (++box < kOfStage) return;
    box = 0;
    if (++turn < M::kVisits * S::kSteps) return;
    turn = 0;
    index += hopper::block_count();
    tile = begin_of(index);
  }

  __device__ __forceinline__ void begin() {
    if (thread == 0) hopper::prefetch(map);
#pragma unroll 1
    for (int slot = 0; slot < S::kAhead; ++slot) {
      if (thread == 0) ask(slot);
      advance();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void end() const {}

  __device__ __forceinline__ ConvUnit unit(const uint8_t* box, uint32_t way, int channels) const {
    const auto* const from = reinterpret_cast<const float*>(box + (way & 0xffffu));
    constexpr bool kFull = S::kGroupIn % (S::kChunks * kLanes) == 0;
    ConvUnit found;
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
      const int at = lane % kLanes;
      const bool there = !Halo::never(lane) && (kFull || S::kGroupIn < kLanes || at < channels);
      found.x[lane] = there ? from[at * M::kBoxChannel + lane / kLanes * S::kDilationW] : 0.0f;
    }
    return found;
  }

  // take(to, units, count) for the units of the stage that is next.
  template <class Take>
  __device__ __forceinline__ void each(const ConvItem& item, int step, const Take& take) {
    const int lead = M::kOneLead ? M::kMostLead : (item.x * S::kStepX + S::kFirstX) & 3;
#pragma unroll 1
    for (int at = 0; at < kOfStage; ++at) {
      const int chunk = at / M::kBoxes;
      const int box_of = at % M::kBoxes;
      const int channels = S::kGroupIn - (step * S::kChunks + chunk) * kLanes;
      const int first = (M::box_depth(box_of) * S::kHaloH + M::box_row(box_of)) * S::kRowPitch +
                        chunk * S::kPlane;
      hopper::wait(barriers.come[slot], parity);
      const uint8_t* const box = raw(slot) + lead * 4;
#pragma unroll
      for (int round = 0; round < kRounds; round += kAtOnce) {
        const int count = min(kAtOnce, kRounds - round);
        ConvUnit units[kAtOnce];
        int to[kAtOnce];
#pragma unroll
        for (int n = 0; n < count; ++n) {
          units[n] = unit(box, ways[round + n], channels);
          to[n] = (first + static_cast<int>(ways[round + n] >> 16)) * 16;
        }
        take(to, units, count);
      }
      // Not as soon as its last elements have been asked for: where products keep shared memory
      // busy, a load takes longer than the box that comes into its place. What was made of them has
      // been stored, so they have come.
      __syncwarp();
      if (thread % 32 == 0) detail::arrive(barriers.read[slot]);
      if (thread / 32 == at % 4) {  // the warps ask in turns
        hopper::wait(barriers.read[slot], parity);
        if (thread % 32 == 0) ask(slot);
        __syncwarp();
      }
      advance();
      if (++slot == S::kAhead) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
};

}  // namespace kw
