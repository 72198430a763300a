// Reductions over all places of a channel, where the sums are: in the registers of the threads that
// have multiplied.
//
// A program whose rows are channels and whose elements are places (P::kInRegisters) needs no slice
// in shared memory for its stages: a thread combines what it has of a channel, and threads meet in
// shuffles. Where weights are the rows of the products, four neighbours have all places of a
// channel; where places are, eight threads of each of the four warps have, and the warps meet in
// shared memory. The results are those of the same program on the slice (conv_epilogue.cuh), for
// which the partial results of each slice are stored. Of the program nothing is asked that is not
// asked there, but what it computes of an element must not depend on the element's place.
#pragma once

#include "conv_epilogue.cuh"
#include "conv_sums.cuh"

namespace kw {

// A thread's part of some rows of a slice: of kOwn channels, the `first` of which is counted among
// those that it has where places are rows. kWhole: all places of the slice exist.
template <class P, class Loop, class S, bool kWhole>
struct SliceRows {
  using C = typename S::C;
  using Sums = ConvSums<Loop, S>;
  static constexpr bool kPixels = Sums::kPixels;
  static constexpr bool kAlongX = Sums::kAlongX;
  static constexpr int kAll = kPixels ? Sums::kPer / 2 : 1;
  static constexpr int kOwn = [] {  // few at once, so that registers are enough
    int most = kAll < 8 ? kAll : 8;
    while (kAll % most != 0) --most;
    return most;
  }();
  static constexpr int kWarps = 4;
  static constexpr int kChains = 4;  // sums side by side, so that none waits for the one before it
  static constexpr int kSlicesY = S::kTall / S::kTileH;
  using Fields = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  const typename P::Args& a;
  Sums& sums;
  const ConvTile<C>& tile;       // `at`: where warps meet
  const RowScale* const scales;  // of its channels
  const int first;
  float scale[kOwn];
  Scalars s[kOwn];
  TileCursor at[kOwn];
  bool there[kOwn];

  // Of the n-th that a thread has, where places are rows.
  __device__ __forceinline__ static int channel(int n, int lane) {
    return n / 2 * 8 + 2 * (lane % 4) + n % 2;
  }

  // Which rows of the slice these are. Threads without one repeat the first.
  __device__ __forceinline__ void begin(int high, int i) {
    const int lane = hopper::kept_lane();
    const int warp = static_cast<int>(threadIdx.x / 32 % kWarps);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      int row = S::kEpilogueThreads == 32 ? lane / 4 : high * 64 + warp * 16 + lane / 4 + 8 * i;
      if constexpr (kPixels) row = channel(first + k, lane);
      at[k] = {tile.sample, tile.channel, tile.z, tile.y, tile.x, row, 0};
      there[k] = row < P::kRows && P::has_row(at[k]);  // a model of few channels does not fill it
      if (!there[k]) at[k].row = 0;
      scale[k] = Loop::kScaled ? scales[at[k].row].scale * sums.down : 1.0f;
    }
  }

  // Calls f(sum, whether its place exists) for what the thread has of a channel.
  template <class F>
  __device__ __forceinline__ void each(int high, int i, int k, int slice, int lane, const F& f) {
    constexpr int kEights = kPixels ? 8 : S::kRows;  // of a part
    const int warp = static_cast<int>(threadIdx.x / 32 % kWarps);
    const int within = kPixels ? lane / 4 : 2 * (lane % 4);
    const int left = (kWhole ? S::kWide : min(S::kWide, S::kOutW - tile.x)) - within;
#pragma unroll
    for (int part = kPixels ? 0 : high; part < Sums::kParts; part += Sums::kHigh) {
      const int block = part / Sums::kHigh;
      const int bx = block % S::kBlocksX;
      const int by = block / S::kBlocksX % S::kBlocksY;
      const int z = block / (S::kBlocksX * S::kBlocksY) - slice / kSlicesY * S::kTileD;
      if (static_cast<unsigned>(z) >= S::kTileD) continue;
#pragma unroll
      for (int j = 0; j < (kPixels ? 2 : S::kRows); ++j) {
        const int eight = kPixels ? 2 * warp + j : j;
        const int x = kAlongX ? (bx * kEights + eight) * 8 : bx * 8;
        const int row = kAlongX ? by : by * kEights + eight;
        const int y = row - slice % kSlicesY * S::kTileH;
        const bool of_slice = row < S::kTall && static_cast<unsigned>(y) < S::kTileH;
        if ((kAlongX || !kPixels) && !of_slice) continue;  // known when it is compiled
        const bool down = of_slice && (kWhole || (y < S::kOutH - tile.y && z < S::kOutD - tile.z));
#pragma unroll
        for (int v = 0; v < (kPixels ? 1 : 2); ++v) {
          const bool full =
              kWhole && (kAlongX && kPixels ? S::kWide == S::kBlocksX * 64 : x + 8 <= S::kWide);
          const int n = first + k;
          f(sums.d[part][kPixels ? n / 2 * 4 + 2 * j + n % 2 : 4 * j + 2 * i + v],
            down && (full || x + v < left));
        }
      }
    }
  }

  template <int I>
  __device__ __forceinline__ float own(int high, int i, int k, int slice, int lane) {
    constexpr Combine kOp = P::kCombine[I];
    float chains[kChains];
#pragma unroll
    for (int n = 0; n < kChains; ++n) chains[n] = identity<kOp>();
    int n = 0;
    each(high, i, k, slice, lane, [&](float& sum, bool exists) {
      Fields f = fields_of<P, I>(sum, scale[k], s[k], a, at[k]);
      const float x = P::contribution(Stage<I>{}, f, s[k], a, at[k]).lanes[0];
      chains[n % kChains] = combine<kOp>(chains[n % kChains], exists ? x : identity<kOp>());
      ++n;
      // Where places are rows, those of other slices come by here too, and have their own turn.
      if constexpr (P::kHolds[I]) sum = exists ? P::held(Stage<I>{}, f).lanes[0] : sum;
    });
    const float pairs[] = {combine<kOp>(chains[0], chains[1]), combine<kOp>(chains[2], chains[3])};
    return combine<kOp>(pairs[0], pairs[1]);
  }

  // All places of a channel, to every thread that has some of them.
  template <Combine kOp>
  __device__ __forceinline__ void together(float (&total)[kOwn], int stage, int lane) const {
    if constexpr (!kPixels) {
      total[0] = reduce_neighbours<kOp, 4>(total[0]);
    } else {
      const int warp = static_cast<int>(threadIdx.x / 32 % kWarps);
      // The next stage writes elsewhere if there is room, so that nobody waits for those who read.
      constexpr int kBuffers = S::kTilePitch >= 2 * kWarps ? 2 : 1;
      float* const from = tile.at + stage % kBuffers * kWarps * S::kChannels;
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) {
          total[k] = combine<kOp>(total[k], __shfl_xor_sync(0xffffffff, total[k], apart));
        }
        if (lane < 4) from[warp * S::kChannels + channel(first + k, lane)] = total[k];
      }
      hopper::sync_threads<128>(tile.barrier);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const float* const of = from + channel(first + k, lane);
        total[k] = combine<kOp>(combine<kOp>(of[0], of[S::kChannels]),
                                combine<kOp>(of[2 * S::kChannels], of[3 * S::kChannels]));
      }
      if constexpr (kBuffers == 1) hopper::sync_threads<128>(tile.barrier);
    }
  }

  template <int I>
  __device__ __forceinline__ void stages(int high, int i, int slice) {
    if constexpr (I < P::kStages) {
      // Values of an earlier stage are made again rather than kept in registers that are not there.
      if constexpr (I > 0 && P::kKeep != Keep::kSlice) {
#pragma unroll
        for (int k = 0; k < kOwn; ++k) asm volatile("" : "+f"(scale[k]));
      }
      const int lane = hopper::kept_lane();
      float total[kOwn];
#pragma unroll
      for (int k = 0; k < kOwn; ++k) total[k] = own<I>(high, i, k, slice, lane);
      together<P::kCombine[I]>(total, I, lane);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) P::finish(Stage<I>{}, s[k], Vec<1>{{total[k]}}, a, at[k]);
      stages<I + 1>(high, i, slice);
    }
  }

  __device__ __forceinline__ void store() const {
    const int lane = hopper::kept_lane();
    const bool own = kPixels ? threadIdx.x / 32 % kWarps == 0 && lane < 4 : lane % 4 == 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (own && there[k]) P::store_row(s[k], a, at[k]);
    }
  }

  __device__ __forceinline__ void reduce(int high, int i, int slice) {
    begin(high, i);
    stages<0>(high, i, slice);
    store();
    // The next slice's first stage writes where this one's last has.
    if constexpr (kPixels && P::kStages % 2 != 0) hopper::sync_threads<128>(tile.barrier);
  }

  // Whether an error may count. In a sum it is small beside the largest result that the thread has;
  // anywhere else a result has to be as good by itself.
  __device__ __forceinline__ bool in_doubt(int high, int i, int slice) {
    constexpr Combine kOp = sums_alone() ? Combine::kMax : Combine::kMin;
    constexpr float kNone = sums_alone() ? 0.0f : kw::detail::kInf;
    begin(high, i);
    const int lane = hopper::kept_lane();
    bool bad = false;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      float size = kNone;
      bool some = false;
      each(high, i, k, slice, lane, [&](float& sum, bool exists) {
        size = combine<kOp>(size, exists ? fabsf(sum) : kNone);
        some |= exists;
      });
      const float bound = Sums::least(scales[at[k].row], sums.doubt, sums.most_down);
      bad = bad || (there[k] && some && !(size * fabsf(scale[k]) > bound));
    }
    return bad;
  }

  KW_FN static constexpr bool sums_alone() {
    for (int stage = 0; stage < P::kStages; ++stage) {
      if (P::kCombine[stage] != Combine::kSum) return false;
    }
    return !P::kStoresElements;
  }
};

template <class P, class Loop, class S>
struct ConvRows {
  static constexpr bool kEven =
      S::kOutW % S::kBlockW == 0 && S::kOutH % S::kBlockH == 0 && S::kOutD % S::kBlockD == 0;
  using Tile = ConvTile<typename S::C>;

  const typename P::Args& a;
  ConvSums<Loop, S>& sums;

  __device__ __forceinline__ void reduce(const Tile& tile, const RowScale* scales, int high, int i,
                                         int slice) const {
    each(tile, scales, [&](auto rows) { rows.reduce(high, i, slice); });
  }

  __device__ __forceinline__ bool in_doubt(const Tile& tile, const RowScale* scales, int high,
                                           int i, int slice) const {
    bool bad = false;
    each(tile, scales, [&](auto rows) { bad = bad || rows.in_doubt(high, i, slice); });
    return bad;
  }

 private:
  template <class F>
  __device__ __forceinline__ void each(const Tile& tile, const RowScale* scales, const F& f) const {
    const bool whole = tile.z + S::kTileD <= S::kOutD && tile.y + S::kTileH <= S::kOutH &&
                       tile.x + S::kTileW <= S::kOutW;
    if (kEven || whole) {
      some<true>(tile, scales, f);
    } else {
      some<false>(tile, scales, f);
    }
  }

  template <bool kWhole, class F>
  __device__ __forceinline__ void some(const Tile& tile, const RowScale* scales, const F& f) const {
    using Rows = SliceRows<P, Loop, S, kWhole>;
#pragma unroll
    for (int first = 0; first < Rows::kAll; first += Rows::kOwn) {
      f(Rows{a, sums, tile, scales, first});
    }
  }
};

}  // namespace kw
