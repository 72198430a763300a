// The feeding side of a convolution: NCHW input into halo tiles that the tensor cores read.
//
// Four warps go through the tiles of their block, stage by stage. A stage is a list of units, 16
// bytes each: eight channels of one place of the halo. Their elements come through shared memory
// (conv_input.cuh), so that some are always on their way.
//
// float32 is scaled by a power of two on its way to float16 (split.cuh says how far that goes). The
// scale is that of the stage before as long as it fits: all threads note the largest magnitude that
// they have seen, and if it does not, the stage is read and converted again. Elements too small for
// the scale are counted; they bound the error of the tile. A stage with a NaN, an
// infinity or a magnitude beyond 2^+-60 gets the scale NaN, and all that comes of it is computed
// again.
#pragma once

#include <type_traits>

#include "conv_input.cuh"

namespace kw {

namespace detail {

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

}  // namespace detail

// What the feeding warps tell each other about a stage, by turns in two places.
struct alignas(16) ConvVote {
  uint32_t most[2][4];
  unsigned smalls[2][4];
};

template <class Loop, class S>
struct ConvFeeder {
  using Input = typename Loop::Input;
  using M = ConvMemory<Loop, S>;
  using Halo = ConvHalo<Loop, S>;
  using Elements = std::conditional_t<M::kBoxed, ConvBoxes<Loop, S>, ConvCopies<Loop, S>>;

  const ConvOperands& g;
  const CUtensorMap* const map;  // of the input, if boxes of it are brought
  uint8_t* const shared;
  ConvBarriers<S>& barriers;
  ConvStage* const stages;
  ConvVote& vote;
  const int64_t items;
  const int thread = static_cast<int>(threadIdx.x);

  float up = 0x1p12f;
  float down = 0x1p-12f;
  uint32_t turn = 0;

  // What a thread has seen of a stage: the largest magnitudes, as the upper halves of the numbers,
  // two in a word (they order like the numbers, and infinity and NaN are the largest), and how many
  // elements are small.
  struct Seen {
    uint32_t most = 0;
    unsigned smalls = 0;
  };

  // The first `count` of some units.
  template <int kUnits>
  __device__ __forceinline__ void store(uint8_t* stage, const int (&to)[kUnits],
                                        const ConvUnit (&units)[kUnits], int count, Seen& seen) {
    uint32_t least = 0xffffffffu;
#pragma unroll
    for (int n = 0; n < count; ++n) {
      uint32_t planes[4][Loop::kPlanes];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float2 x{units[n].x[2 * pair], units[n].x[2 * pair + 1]};
        split::split_pair<Loop::kPlanes>(float2{x.x * up, x.y * up}, planes[pair]);
        const uint32_t sizes =
            __byte_perm(__float_as_uint(x.x), __float_as_uint(x.y), 0x7632) & 0x7fff7fffu;
        seen.most = __vmaxu2(seen.most, sizes);
        least = __viaddmin_u16x2(sizes, 0xffffffffu, least);  // less one, which makes zero the most
      }
#pragma unroll
      for (int p = 0; p < Loop::kPlanes; ++p) {
        *reinterpret_cast<uint4*>(stage + p * M::kPlane + to[n]) = {planes[0][p], planes[1][p],
                                                                    planes[2][p], planes[3][p]};
      }
    }
    const float bound = split::kSmallest<Loop::kPlanes> * down;
    if (min(least & 0xffffu, least >> 16) + 1 < __float_as_uint(bound) >> 16) {
#pragma unroll
      for (int n = 0; n < count; ++n) seen.smalls += smalls(units[n], bound);
    }
  }

  // Zeros are not small: nothing of them is lost. They are many where a tile meets the padding and
  // where the input comes of a ReLU, so nobody counts because of them. (Nor because of what is
  // below 2^-133 and has an upper half of zero: no weight makes that count beside the rest of a
  // stage.)
  static __device__ __forceinline__ unsigned smalls(const ConvUnit& unit, float bound) {
    unsigned count = 0;
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {  // the sign is gone, zero is most
      count += 2 * __float_as_uint(unit.x[lane]) - 1 < 2 * __float_as_uint(bound) - 1 ? 1 : 0;
    }
    return count;
  }

  // All threads get the largest of all, in the low half, and the number of small elements.
  __device__ __forceinline__ Seen agree(const Seen& own) {
    const uint32_t most = split::warp_max(own.most);
    const unsigned smalls = __reduce_add_sync(0xffffffff, own.smalls);
    turn ^= 1;
    if (thread % 32 == 0) {
      vote.most[turn][thread / 32] = most;
      vote.smalls[turn][thread / 32] = smalls;
    }
    hopper::sync_threads<128>(3);
    const uint4 mosts = *reinterpret_cast<const uint4*>(vote.most[turn]);
    const uint4 counts = *reinterpret_cast<const uint4*>(vote.smalls[turn]);
    Seen all;
    all.most = max(max(mosts.x, mosts.y), max(mosts.z, mosts.w));
    all.smalls = counts.x + counts.y + counts.z + counts.w;
    return all;
  }

  // Of the small elements of a tile a result meets no more than it has products.
  __device__ __forceinline__ ConvStage told(unsigned smalls) const {
    constexpr unsigned kProducts = 16 * S::kMostDepthSteps;
    const float residue = static_cast<float>(min(smalls, kProducts)) * 0x1p-25f;
    return {down, residue * down * split::kDoubtPerResidue<Loop::kPlanes>};
  }

  // All of a stage's units.
  __device__ __forceinline__ ConvStage convert(Elements& elements, uint8_t* stage,
                                               const ConvItem& item, int step) {
    Seen seen;
    elements.each(item, step, [&](const auto& to, const auto& units, int count) {
      store(stage, to, units, count, seen);
    });
    detail::fence_products();
    seen.most = max(seen.most & 0xffffu, seen.most >> 16);
    const Seen all = agree(seen);
    const uint32_t scaled = (all.most >> 7) + (__float_as_uint(up) >> 23);  // exponents
    const bool fits = scaled >= 2 * 127 + 9 && scaled < 2 * 127 + 15;
    return fits ? told(all.smalls) : convert_again(stage, item, step);
  }

  // The stage from memory, with the scale that it needs.
  __device__ __forceinline__ ConvStage convert_again(uint8_t* stage, const ConvItem& item,
                                                     int step) {
    const Halo halo(g, item, step);
    Seen seen;
#pragma unroll 1
    for (int u = thread; u < S::kUnits; u += 128) {
      const ConvUnit unit = halo.unit(u, Halo::way(u));
#pragma unroll
      for (int lane = 0; lane < 8; ++lane) {
        seen.most = max(seen.most, __float_as_uint(unit.x[lane]) & 0x7fffffffu);
      }
    }
    const uint32_t most = agree(seen).most;
    const int exponent = static_cast<int>(most >> 23) - 127;
    if (most == 0) return told(0);
    if (exponent > 60 || exponent < -60) return {__builtin_nanf(""), __builtin_nanf("")};
    up = __uint_as_float(static_cast<uint32_t>(127 + 13 - exponent) << 23);
    down = __uint_as_float(static_cast<uint32_t>(127 - 13 + exponent) << 23);
    seen = Seen{};
#pragma unroll 1
    for (int u = thread; u < S::kUnits; u += 128) {
      const auto way = Halo::way(u);
      const int to[] = {way.to};
      const ConvUnit units[] = {halo.unit(u, way)};
      store(stage, to, units, 1, seen);
    }
    detail::fence_products();
    return told(agree(seen).smalls);
  }

  // What is in memory, as it is.
  __device__ __forceinline__ void copy_halves(const Elements& elements, uint8_t* stage,
                                              const ConvItem& item, int step) {
    constexpr int kAtOnce = 4;
    const Halo halo(g, item, step);
#pragma unroll 1
    for (int first = 0; first < S::kUnits; first += kAtOnce * 128) {
      uint32_t x[kAtOnce][4];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int u = first + n * 128 + thread;
        const int from = u < S::kUnits ? elements.way(u).from : 0;
        const typename Halo::Inside inside(halo, u);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint32_t low = halo.read(inside, from, 2 * pair).bits;
          x[n][pair] = low | uint32_t{halo.read(inside, from, 2 * pair + 1).bits} << 16;
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int u = first + n * 128 + thread;
        if (u < S::kUnits) {
          *reinterpret_cast<uint4*>(stage + elements.way(u).to) = {x[n][0], x[n][1], x[n][2],
                                                                   x[n][3]};
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

  // The kernel before this one packs weights, and what comes before that is done: the input is read
  // at once, and only the weights are waited for. Where they are packed already, it is a kernel
  // that comes after a convolution of the same input, or that convolution itself: it has called
  // await_turn too, so that what came before it is done, and the input is older than that.
  __device__ __forceinline__ void run() {
    Elements elements(g, map, shared, barriers, items);
    if constexpr (Loop::kScaled) elements.begin();
    int at = 0;
    uint32_t phase = 1;
    bool is_first = true;
#pragma unroll 1
    for (int64_t index = hopper::block_index(); index < items; index += hopper::block_count()) {
      const ConvItem item = ConvItem::at(index, S{});
#pragma unroll 1
      for (int turn_of = 0; turn_of < M::kVisits * S::kSteps; ++turn_of) {
        const int visit = turn_of / S::kSteps;
        const int step = turn_of % S::kSteps;
        hopper::wait(barriers.empty[at], phase);
        if (S::kResident == 0 && S::kWeightRing == 0 && thread == 0) {
          if (is_first) await_turn();
          fetch_weights(at, item, visit, step);
        }
        uint8_t* const stage = shared + at * M::kStage;
        if constexpr (Loop::kScaled) {
          const ConvStage found = convert(elements, stage, item, step);
          if (thread == 0) stages[at] = found;
        } else {
          copy_halves(elements, stage, item, step);
        }
        if (thread == 0) detail::arrive(barriers.full[at]);
        if (is_first) await_turn();
        is_first = false;
        if (++at == S::kStages) {
          at = 0;
          phase ^= 1;
        }
      }
    }
    if constexpr (Loop::kScaled) elements.end();
  }
};

}  // namespace kw
