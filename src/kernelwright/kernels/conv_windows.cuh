// The largest sum of each window of a tile, where the sums are: in the registers of the threads
// that have multiplied.
//
// Weights are rows there, so that four neighbouring threads have all places of a channel: of every
// eight columns each has two, in all rows and planes. Down the rows and planes of a window a thread
// goes alone; along its columns, neighbours tell one another what they have. Windows side by side
// lie in eights. Windows that overlap reach into the next eight, and at the edges of the output
// beyond it.
#pragma once

#include "conv_shape.cuh"

namespace kw {

// Sums: those of a thread, d[part][...], and the warpgroup's place in the block's tile.
template <class S, class Sums>
struct ConvWindows {
  static constexpr bool kAlongX = S::kAlongX != 0;
  static constexpr int kHigh = S::kChannels / 64;
  static constexpr int kEights = (S::kWide + 7) / 8;
  static constexpr bool kOverlap = S::kWindowW > S::kWindowStepW;
  static_assert(8 % S::kWindowStepW == 0, "as many windows begin in every eight");
  static_assert(!kOverlap || S::kWindowW <= 9, "none reaches further than into the next one");
  static_assert(kOverlap || (S::kWindowW == S::kWindowStepW && S::kWide % 8 == 0),
                "others do not reach into it");

  Sums& sums;
  const int quarter;  // which of four neighbours this thread is

  // Where two neighbouring sums of a row are, of channel `high * 64 + 8 * i + ...`.
  struct Pair {
    int part;
    int at;
  };
  static __device__ __forceinline__ constexpr Pair pair_of(int high, int i, int z, int y,
                                                           int eight) {
    const int bx = kAlongX ? eight / S::kRows : eight;
    const int by = kAlongX ? y : y / S::kRows;
    const int j = kAlongX ? eight % S::kRows : y % S::kRows;
    return {((z * S::kBlocksY + by) * S::kBlocksX + bx) * kHigh + high, 4 * j + 2 * i};
  }
  __device__ __forceinline__ float2 sums_at(int high, int i, int z, int y, int eight) const {
    const Pair pair = pair_of(high, i, z, y, eight);
    return {sums.d[pair.part][pair.at], sums.d[pair.part][pair.at + 1]};
  }

  // Whether place `first + at` of an axis is outside of its output. Only the first `pad` of a tile
  // can be before it, and only where some window reaches `beyond` it does one see what is there: so
  // most answers are known when this is compiled.
  static __device__ __forceinline__ bool is_none(int first, int at, int pad, bool beyond, int out) {
    return (at < pad && first + at < 0) || (beyond && first + at >= out);
  }

  // Around its output a convolution has values too, which no window must see.
  __device__ __forceinline__ void leave_out_edges(const ConvItem& item) {
    const int z0 = item.z + sums.deep();
    const int y0 = item.y + sums.tall();
    const int x0 = item.x + sums.wide();
    if (z0 >= 0 && y0 >= 0 && x0 >= 0 && (!S::kBeyondZ || z0 + S::kDeep <= S::kOutD) &&
        (!S::kBeyondY || y0 + S::kTall <= S::kOutH) &&
        (!S::kBeyondX || x0 + S::kWide <= S::kOutW)) {
      return;
    }
    const int column = 2 * quarter;
#pragma unroll
    for (int z = 0; z < S::kDeep; ++z) {
#pragma unroll
      for (int y = 0; y < S::kTall; ++y) {
        const bool row = is_none(z0, z, S::kWindowPadD, S::kBeyondZ, S::kOutD) ||
                         is_none(y0, y, S::kWindowPadH, S::kBeyondY, S::kOutH);
#pragma unroll
        for (int n = 0; n < kEights * 2; ++n) {
          const bool none =
              row || is_none(x0 + column + n % 2, n / 2 * 8, S::kWindowPadW, S::kBeyondX, S::kOutW);
#pragma unroll
          for (int c = 0; c < 2 * kHigh; ++c) {
            const Pair pair = pair_of(c / 2, c % 2, z, y, n / 2);
            float& sum = sums.d[pair.part][pair.at + n % 2];
            sum = none ? -kw::detail::kInf : sum;
          }
        }
      }
    }
  }

  // The windows of a row of them, into a line of the slice.
  template <bool kDoubtful>
  __device__ __forceinline__ void put(float* line, int high, int i, int z, int y,
                                      float& smallest) const {
    float2 own = largest_pair(high, i, z, y, 0);
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const float2 next = largest_pair(high, i, z, y, eight + 1 < kEights ? eight + 1 : eight);
      if constexpr (kOverlap) {
        put_overlapping<kDoubtful>(line, eight, own, next, smallest);
      } else {
        put_beside<kDoubtful>(line + eight * (8 / S::kWindowW), own, smallest);
      }
      own = next;
    }
  }

  // Down the rows and planes of a window.
  __device__ __forceinline__ float2 largest_pair(int high, int i, int z, int y, int eight) const {
    float2 most = sums_at(high, i, z * S::kWindowStepD, y * S::kWindowStepH, eight);
#pragma unroll
    for (int n = 1; n < S::kWindowD * S::kWindowH; ++n) {
      const float2 next = sums_at(high, i, z * S::kWindowStepD + n / S::kWindowH,
                                  y * S::kWindowStepH + n % S::kWindowH, eight);
      most = {maximum(most.x, next.x), maximum(most.y, next.y)};
    }
    return most;
  }

  // Along columns of windows that overlap: those that begin in the eight `own`, whose right
  // neighbour is `next`. Of an odd number of columns, a window that begins at a thread's first
  // column ends with the first of another thread, and one that begins at its second with a whole
  // pair; of an even number it is the other way around.
  template <bool kDoubtful>
  __device__ __forceinline__ void put_overlapping(float* line, int eight, float2 own, float2 next,
                                                  float& smallest) const {
    constexpr int kHalf = S::kWindowW / 2;
    constexpr bool kOdd = S::kWindowW % 2 != 0;
    constexpr bool kAtSecond = S::kWindowStepW == 1;  // or windows begin at first columns alone
    const float2 pair{maximum(own.x, own.y), maximum(next.x, next.y)};
    float at_first = pair.x;
    float at_second = own.y;
#pragma unroll
    for (int n = 1; n < kHalf; ++n) {
      const float further = pairs_on(pair, n);
      at_first = maximum(at_first, further);
      at_second = maximum(at_second, further);
    }
    if constexpr (kOdd || kAtSecond) {
      float& ending = kOdd ? at_first : at_second;
      ending = maximum(ending, pairs_on({own.x, next.x}, kHalf));
    }
    if constexpr (kOdd && kAtSecond) at_second = maximum(at_second, pairs_on(pair, kHalf));
    const int column = 8 * eight + 2 * quarter;
    put_window<kDoubtful>(line, column, at_first, smallest);
    if constexpr (kAtSecond) put_window<kDoubtful>(line, column + 1, at_second, smallest);
  }

  // What a thread n pairs of columns further on has, in this eight (x) or in the next one (y).
  __device__ __forceinline__ float pairs_on(float2 values, int n) const {
    if (n == 4) return values.y;
    return __shfl_sync(0xffffffff, quarter < n ? values.y : values.x, quarter + n, 4);
  }

  template <bool kDoubtful>
  static __device__ __forceinline__ void put_window(float* line, int column, float most,
                                                    float& smallest) {
    if (column % S::kWindowStepW != 0 || column / S::kWindowStepW >= S::kTileW) return;
    line[column / S::kWindowStepW] = most;
    if constexpr (kDoubtful) smallest = minimum(smallest, fabsf(most));
  }

  // Along columns of windows side by side: those of four threads are eight.
  template <bool kDoubtful>
  __device__ __forceinline__ void put_beside(float* to, float2 pair, float& smallest) const {
    if constexpr (S::kWindowW == 1) {
      *reinterpret_cast<float2*>(to + 2 * quarter) = pair;
      if constexpr (kDoubtful) {
        smallest = minimum(smallest, minimum(fabsf(pair.x), fabsf(pair.y)));
      }
    } else {
      float most = maximum(pair.x, pair.y);
#pragma unroll
      for (int apart = 1; apart < S::kWindowW / 2; apart *= 2) {
        most = maximum(most, __shfl_xor_sync(0xffffffff, most, apart));
      }
      if (quarter % (S::kWindowW / 2) == 0) to[quarter / (S::kWindowW / 2)] = most;
      if constexpr (kDoubtful) smallest = minimum(smallest, fabsf(most));
    }
  }
};

}  // namespace kw
