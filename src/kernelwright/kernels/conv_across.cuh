// Reductions over all channels of a place, where the sums are: in the registers of the threads that
// have multiplied.
//
// Where places are the rows of the products, four neighbours have all channels of a place. So a
// program whose rows are places and whose elements are channels (P::kAcross) needs no slice in
// shared memory: a thread combines what it has of a place, and the four meet in shuffles. It goes
// from channel to channel with all of its places, so that a channel's scale and parameters are
// loaded once. The results are those of the same program on slices (conv_epilogue.cuh), which is
// where a tile with results in doubt goes. Elements cannot be stored from here.
#pragma once

#include "conv_epilogue.cuh"
#include "conv_sums.cuh"

namespace kw {

template <class P, class Loop, class S>
struct ConvAcross {
  using C = typename S::C;
  using Sums = ConvSums<Loop, S>;
  static constexpr int kOwn = Sums::kPer / 2;       // channels that a thread has of each place
  static constexpr int kPlaces = 2 * Sums::kParts;  // of a thread
  static_assert(!P::kStoresElements && !P::kStoresSegments, "rows alone are stored");
  using Fields = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  const typename P::Args& a;
  Sums& sums;
  const ConvTile<C>& tile;       // the warpgroup's first slice
  const RowScale* const scales;  // of its channels
  Scalars s[kPlaces];

  // A number that is another one now, as far as the compiler knows. What follows from it is found
  // anew instead of being kept in registers, which hold sums.
  __device__ __forceinline__ static int anew(int number) {
    asm volatile("" : "+r"(number));
    return number;
  }

  __device__ __forceinline__ static int first_channel(int lane) { return anew(2 * (lane % 4)); }

  // And its n-th.
  __device__ __forceinline__ static int channel(int first, int n) {
    return n / 2 * 8 + first + n % 2;
  }

  __device__ __forceinline__ float& sum(int p, int n) const {
    return sums.d[p / 2][n / 2 * 4 + 2 * (p % 2) + n % 2];
  }

  __device__ __forceinline__ float scale_of(int channel) const {
    return Loop::kScaled ? scales[channel].scale * sums.down : 1.0f;
  }

  struct Place {
    bool exists;
    TileCursor at;
  };

  // Which row of which slice a place is. What is none repeats the first one, and stores nothing.
  __device__ __forceinline__ Place place(int p, int lane) const {
    const int eight = 2 * static_cast<int>(threadIdx.x / 32 % 4) + p % 2;
    const int bx = p / 2 % S::kBlocksX;
    const int by = p / 2 / S::kBlocksX % S::kBlocksY;
    const int x = (Sums::kAlongX ? bx * 8 + eight : bx) * 8 + lane / 4;
    const int y = Sums::kAlongX ? by : by * 8 + eight;
    const int z = p / 2 / (S::kBlocksX * S::kBlocksY);
    const TileCursor first{tile.sample, tile.channel, tile.z, tile.y, tile.x, 0, 0};
    const bool own = x < S::kWide && y < S::kTall && z < S::kDeep;
    if (!own || tile.x + x >= S::kOutW || tile.y + y >= S::kOutH || tile.z + z >= S::kOutD) {
      return {false, first};
    }
    TileCursor at = first;
    at.z += z / S::kTileD * S::kTileD;
    at.y += y / S::kTileH * S::kTileH;
    at.row = (z % S::kTileD * S::kTileH + y % S::kTileH) * S::kTileW + x;
    return {true, at};
  }

  template <int I>
  __device__ __forceinline__ void stages() {
    if constexpr (I < P::kStages) {
      constexpr Combine kOp = P::kCombine[I];
      const int lane = hopper::kept_lane();
      const int first = first_channel(lane);
      float total[kPlaces];
#pragma unroll
      for (int p = 0; p < kPlaces; ++p) total[p] = identity<kOp>();
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        const int own = channel(first, n);
        const bool exists = P::kElements == S::kChannels || own < P::kElements;
        const int element = exists ? own : 0;
        const float scale = scale_of(element);
        const int here = anew(lane);
#pragma unroll
        for (int p = 0; p < kPlaces; ++p) {
          TileCursor at = place(p, here).at;
          at.element = element;
          Fields f = fields_of<P, I>(sum(p, n), scale, s[p], a, at);
          const float x = P::contribution(Stage<I>{}, f, s[p], a, at).lanes[0];
          if constexpr (P::kHolds[I]) sum(p, n) = P::held(Stage<I>{}, f).lanes[0];
          total[p] = combine<kOp>(total[p], exists ? x : identity<kOp>());
        }
      }
#pragma unroll
      for (int p = 0; p < kPlaces; ++p) {
        const Vec<1> all{{reduce_neighbours<kOp, 4>(total[p])}};
        P::finish(Stage<I>{}, s[p], all, a, place(p, anew(lane)).at);
      }
      stages<I + 1>();
    }
  }

  __device__ __forceinline__ void reduce() {
    stages<0>();
    const int lane = hopper::kept_lane();
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) {
      const Place own = place(p, lane);
      if (own.exists && lane % 4 == 0) P::store_row(s[p], a, own.at);
    }
  }

  // Whether a result may be too small for its error.
  __device__ __forceinline__ bool in_doubt() const {
    const int lane = hopper::kept_lane();
    const int first = first_channel(lane);
    unsigned there = 0;  // a bit for each place
#pragma unroll
    for (int p = 0; p < kPlaces; ++p) there |= (place(p, lane).exists ? 1u : 0u) << p;
    bool bad = false;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int own = channel(first, n);
      if (P::kElements != S::kChannels && own >= P::kElements) continue;
      float smallest = kw::detail::kInf;
#pragma unroll
      for (int p = 0; p < kPlaces; ++p) {
        if ((there >> p & 1) != 0) smallest = minimum(smallest, fabsf(sum(p, n)));
      }
      const float bound = Sums::least(scales[own], sums.doubt, sums.most_down);
      bad = bad || !(smallest * fabsf(scale_of(own)) > bound);
    }
    return bad;
  }
};

}  // namespace kw
