// A convolution on Hopper's tensor cores, with everything that follows it run on tiles of its
// results in shared memory (conv_tile.cuh).
//
// The tensor cores read the input where it lies: a tile's halo is kept in shared memory as
// [8 channels][z][y][x], 16 bytes for each place, which is the layout of an operand without a
// swizzle. Moving the window by a tap moves the operand's start address, and nothing else. So the
// input is read once, converted once, and there is neither an im2col nor a copy for every tap.
//
// One block per multiprocessor stays for the whole launch. Its first warpgroup feeds
// (conv_feed.cuh); two more multiply, each its own places or channels of the tile, and run the
// epilogue. Weights lie in shared memory for the whole launch (kResident), or come with every
// stage, or each warpgroup fetches those of its own channels (kWeightRing). They are the rows of
// the products and places the columns, or, for few channels, the other way around (kPixelsOnM).
//
// Split float32 adds partial sums of kPromote depth steps in float32 registers, because the tensor
// cores truncate. The warpgroups take turns, so that one multiplies while the other adds or is in
// its epilogue (conv_sums.cuh). Results whose error cannot be bounded are computed again in plain
// float32.
#pragma once

#include "conv_sums.cuh"
#include "conv_tile.cuh"
#include "conv_windows.cuh"

namespace kw {

namespace detail {

// All threads of an epilogue wait, and learn whether one of them has something to say.
template <int kThreads>
__device__ __forceinline__ bool sync_any(int barrier, bool own) {
  if constexpr (kThreads == 32) {
    __syncwarp();  // a vote orders no memory
    return __any_sync(0xffffffff, own);
  } else {
    int any;
    asm volatile(
        "{\n"
        ".reg .pred p, q;\n"
        "setp.ne.b32 p, %1, 0;\n"
        "barrier.cta.red.or.pred q, %2, %3, p;\n"
        "selp.b32 %0, 1, 0, q;\n"
        "}\n"
        : "=r"(any)
        : "r"(static_cast<int>(own)), "r"(barrier), "n"(kThreads)
        : "memory");
    return any != 0;
  }
}

template <int kThreads>
__device__ __forceinline__ void sync_epilogue(int barrier) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else {
    hopper::sync_threads<kThreads>(barrier);
  }
}

// One result in float32, by a warp. What is outside of the input counts as zeros where a
// convolution pads; a transposed one has nothing there. Weights that were summed up for a mean are
// multiplied one by one: an infinity times weights of either sign is NaN.
template <class S>
__device__ __forceinline__ float recompute(const ConvOperands& g, int64_t sample, int channel,
                                           int z, int y, int x) {
  constexpr int kIn = S::kCin / S::kGroups;
  constexpr int kOut = S::kCout / S::kGroups;
  const int first = channel / kOut * kIn;
  const auto* const input = static_cast<const float*>(g.input) +
                            (sample * S::kCin + first) * S::kInD * S::kInH * int64_t{S::kInW};
  const auto* const weight = static_cast<const float*>(g.weight);
  // Where tap t of an axis meets the input; negative where it meets none.
  const auto coordinate = [](const ConvAxis& axis, int out, int tap) {
    if (!axis.transposed) return out * axis.stride - axis.pad + tap * axis.dilation;
    const int at = out + axis.pad - tap * axis.dilation;
    return at >= 0 && at % axis.stride == 0 ? at / axis.stride : -1;
  };
  float sum = 0.0f;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x % 32); i < kIn * S::kTaps; i += 32) {
    const int tap = i % S::kTaps;
    const int in = i / S::kTaps;
    const int iz = coordinate(S::z_axis(), z, tap / (S::kKernelW * S::kKernelH));
    const int iy = coordinate(S::y_axis(), y, tap / S::kKernelW % S::kKernelH);
    const int ix = coordinate(S::x_axis(), x, tap % S::kKernelW);
    const bool inside = static_cast<unsigned>(iz) < S::kInD &&
                        static_cast<unsigned>(iy) < S::kInH && static_cast<unsigned>(ix) < S::kInW;
    if (S::kOwnTransposed != 0 && !inside) continue;
    const int64_t at = ((int64_t{in} * S::kInD + iz) * S::kInH + iy) * S::kInW + ix;
    const float met = inside ? input[at] : 0.0f;
    each_weight<S>(channel, first + in, tap,
                   [&](int64_t own) { sum = fmaf(met, weight[own], sum); });
  }
  return reduce_threads<Combine::kSum, 32>(sum) * (1.0f / S::kMean);
}

}  // namespace detail

// A warpgroup that multiplies and runs epilogues.
template <class Loop, class P, class S>
struct ConvConsumer {
  using C = typename S::C;
  using M = ConvMemory<Loop, S>;
  using Sums = ConvSums<Loop, S>;
  static constexpr bool kPixels = Sums::kPixels;
  static constexpr bool kAlongX = Sums::kAlongX;
  static constexpr int kHigh = Sums::kHigh;
  static constexpr int kThreads = S::kEpilogueThreads;
  static constexpr bool kByWarps = kThreads == 32;

  const ConvOperands& g;
  const typename P::Args& a;
  const int64_t items;
  Sums sums;
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);

  // Sums go into the slice as they are, unless phases meet in it, whose scales may differ.
  static constexpr bool kUnscaled = S::kUnscaled != 0;
  static_assert(!kUnscaled || (Loop::kScaled && S::kPhases == 1), "sums of one scale");
  static constexpr bool kWindows = S::kWindowD * S::kWindowH * S::kWindowW > 1;
  static_assert(!kWindows || (!kPixels && S::kPhases == 1), "a warp has all places of a channel");
  static_assert(kWindows || !S::kEdges, "only windows reach beyond the output");
  static_assert(!P::kTurns || kUnscaled, "scales bring back what was turned");

  // A tile that is one place deep may hand over the phases along z one after the other, and one
  // that is one place tall besides those along y.
  static constexpr bool kByDepth = S::kSpreadZ > 1 && S::kTileD == 1;
  static constexpr bool kByRow = S::kSpreadY > 1 && S::kTileH == 1;
  static constexpr int kTogether =  // phases that meet in a slice
      kByRow     ? S::kPhasesX
      : kByDepth ? S::kPhasesY * S::kPhasesX
                 : S::kPhases;
  static constexpr int kSlicesY = kByRow ? 1 : S::kWindowsY / S::kTileH;
  static constexpr int kSlicesZ = kByDepth ? 1 : S::kWindowsZ / S::kTileD;
  // A warp's eights of channels, two of each 64 rows, and how many of them a slice has.
  static constexpr int kEights = S::kTileChannels / 8;
  static constexpr int kSlicesC = kByWarps ? 2 * kHigh / kEights : 1;
  static constexpr int kSlices = kSlicesC * kSlicesZ * kSlicesY;
  static_assert(S::kPhases == 1 || kSlices == 1, "phases meet in one slice");
  static_assert(!kByDepth || S::kDeep == 1, "or in one for each depth");
  static_assert(!kByRow || (S::kTall == 1 && (kByDepth || S::kSpreadZ == 1)), "or for each row");
  static_assert(S::kTileW == S::kWindowsX, "slices are as wide as the tile");
  static_assert(S::kWindowsY % S::kTileH == 0 && S::kWindowsZ % S::kTileD == 0,
                "a tile is whole slices");
  static_assert(!kByWarps || (!kPixels && kEights * 8 == S::kTileChannels && S::kPhases == 1),
                "warps have channels to themselves only where weights are rows");
  static_assert(!kByWarps || kEights == 1 || (kEights == 2 && !P::kInRegisters),
                "they are sixteen that lie side by side");
  static_assert(kByWarps || S::kTileChannels == S::kChannels, "or else all of the warpgroup's");
  static_assert(S::kDenseGroups == 1 || S::kGroupOut % S::kTileChannels == 0,
                "a slice must not reach into the next group");

  static_assert(!P::kInRegisters || (S::kPhases == 1 && !kWindows), "each result has its register");
  static_assert(!P::kAcross || (kPixels && S::kPhases == 1 && !kWindows && S::kSplitC == 1 &&
                                S::kChannelTiles == 1),
                "four threads have all channels of a place");

  // Whether results of the tile can be in doubt at all; if not, nobody asks.
  bool of_weights = false;

  __device__ __forceinline__ bool doubtful() const {
    return Loop::kScaled && (of_weights || !(sums.doubt == 0.0f));
  }

  // Once: weights may bring doubt into any tile.
  __device__ __forceinline__ void look_at_weights() {
    if constexpr (Loop::kScaled) {
      const auto* const scales = reinterpret_cast<const RowScale*>(sums.shared + M::kScalesAt);
      bool any = false;
      for (int i = hopper::lane(); i < S::kChannelTiles * S::kBlockChannels; i += 32) {
        any = any || !(scales[i].doubt == 0.0f) || !(fabsf(scales[i].scale) < kw::detail::kInf);
      }
      of_weights = __any_sync(0xffffffff, any);
    }
  }

  static constexpr bool kLargest = S::kPhaseMax != 0;  // of the phases, that of each place

  // A result into its place; of several phases, the largest where that is wanted. `smallest` is the
  // smallest magnitude that was put, or NaN.
  template <bool kDoubtful>
  __device__ __forceinline__ static void put(float* to, float x, bool first, float& smallest) {
    if (kLargest && !first) x = maximum(*to, x);
    if constexpr (kDoubtful) smallest = minimum(smallest, fabsf(x));
    *to = x;
  }

  // Two neighbouring columns of a row.
  template <bool kDoubtful>
  __device__ __forceinline__ static void put_pair(float* to, int x, float2 pair, bool first,
                                                  float& smallest) {
    constexpr bool kWhole = S::kWide % 8 == 0;
    if constexpr (S::kPhases == 1 && S::kWide % 2 == 0) {
      if (!kWhole && x >= S::kWide) return;
      if constexpr (kDoubtful) {
        smallest = minimum(smallest, minimum(fabsf(pair.x), fabsf(pair.y)));
      }
      *reinterpret_cast<float2*>(to) = pair;
    } else {
      if (kWhole || x < S::kWide) put<kDoubtful>(to, pair.x, first, smallest);
      if (kWhole || x + 1 < S::kWide) put<kDoubtful>(to + S::kSpreadX, pair.y, first, smallest);
    }
  }

  // What a channel's sums are multiplied by, here or later, and what its results must be above.
  template <bool kDoubtful>
  struct Channel {
    float scale = 1.0f;
    float bound = 0.0f;
    float smallest = kw::detail::kInf;

    __device__ __forceinline__ float factor() const { return kUnscaled ? 1.0f : scale; }
    __device__ __forceinline__ bool bad() const {
      return kDoubtful && !(smallest * (kUnscaled ? fabsf(scale) : 1.0f) > bound);
    }
    __device__ __forceinline__ void load(const RowScale* scales, int channel, const Sums& sums) {
      if constexpr (kDoubtful || (Loop::kScaled && !kUnscaled)) {
        const RowScale weight = scales[channel];
        scale = weight.scale * sums.down;
        bound = Sums::least(weight, sums.doubt, sums.most_down);
      }
    }
  };

  // The sums of a slice into its memory; whether one is in doubt, if that is not known yet.
  __device__ __forceinline__ bool write(const RowScale* scales, float* to, int slice, int phase,
                                        bool ask) const {
    const int z0 = S::kSpreadZ > 1 && !kByDepth ? S::phase_z(phase) : 0;
    const int y0 = S::kSpreadY > 1 && !kByRow ? S::phase_y(phase) : 0;
    const int x0 = S::kSpreadX > 1 ? S::phase_x(phase) : 0;
    float* const at = to + (z0 * S::kTileH + y0) * S::kTileW + x0;
    if (Loop::kScaled && ask && doubtful()) {
      return write_results<Loop::kScaled>(scales, at, slice, phase == 0);
    } else {
      return write_results<false>(scales, at, slice, phase == 0);
    }
  }

  template <bool kDoubtful>
  __device__ __forceinline__ bool write_results(const RowScale* scales, float* to, int slice,
                                                bool first) const {
    if constexpr (kWindows) {
      return write_windows<kDoubtful>(scales, to, slice);
    } else if constexpr (kPixels) {
      return write_places<kDoubtful>(scales, to, slice, first);
    } else {
      return write_channels<kDoubtful>(scales, to, slice, first);
    }
  }

  // Places are rows: a thread has two of them in each part, and two of every eight channels.
  template <bool kDoubtful>
  __device__ __forceinline__ bool write_places(const RowScale* scales, float* to, int slice,
                                               bool first) const {
    const int lane = S::kPhases > 1 ? hopper::kept_lane() : hopper::lane();  // phase after phase
    const int slice_y = slice % kSlicesY;
    const int slice_z = slice / kSlicesY;
    const auto channel_of = [lane](int k) { return k / 2 * 8 + 2 * (lane % 4) + k % 2; };
    // Loads cannot overtake stores into the slice: the scales of several channels come before the
    // next ones.
    constexpr int kChannels = Sums::kPer / 2;
    constexpr int kAtOnce = kDoubtful || kLargest ? 1 : 8;
    bool bad = false;
#pragma unroll
    for (int k0 = 0; k0 < kChannels; k0 += kAtOnce) {
      Channel<kDoubtful> channels[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce && k0 + n < kChannels; ++n) {
        channels[n].load(scales, channel_of(k0 + n), sums);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce && k0 + n < kChannels; ++n) {
        Channel<kDoubtful>& channel = channels[n];
        const int k = k0 + n;
#pragma unroll
        for (int part = 0; part < Sums::kParts; ++part) {
          const int bx = part % S::kBlocksX;
          const int by = part / S::kBlocksX % S::kBlocksY;
          const int z = part / (S::kBlocksX * S::kBlocksY) * S::kSpreadZ - slice_z * S::kTileD;
          if (kSlicesZ > 1 && static_cast<unsigned>(z) >= S::kTileD) continue;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int eight = 2 * warp + i;
            const int x = (kAlongX ? bx * 8 + eight : bx) * 8 + lane / 4;
            const int row = kAlongX ? by : by * 8 + eight;
            const int y = row * S::kSpreadY - slice_y * S::kTileH;
            if (row >= S::kTall || x >= S::kWide) continue;
            if (kSlicesY > 1 && static_cast<unsigned>(y) >= S::kTileH) continue;
            put<kDoubtful>(to + channel_of(k) * S::kTilePitch + (z * S::kTileH + y) * S::kTileW +
                               x * S::kSpreadX,
                           sums.d[part][k / 2 * 4 + 2 * i + k % 2] * channel.factor(), first,
                           channel.smallest);
          }
        }
        bad = bad || channel.bad();
      }
    }
    return bad;
  }

  // Weights are rows: which one of the slice a thread has in each eight of channels.
  __device__ __forceinline__ int row_of(int high, int i, int lane) const {
    const int own = lane / 4;
    return kByWarps ? i % kEights * 8 + own : high * 64 + warp * 16 + i * 8 + own;
  }

  // Weights are rows: a thread has two channels in each part, and two of every eight places.
  template <bool kDoubtful>
  __device__ __forceinline__ bool write_channels(const RowScale* scales, float* to, int slice,
                                                 bool first) const {
    const int lane = hopper::lane();
    // Loads cannot overtake the stores below. (One dimension: of an array of arrays nvcc 13.0 gives
    // default members their values in the first row alone.)
    Channel<kDoubtful> channels[2 * kHigh];
#pragma unroll
    for (int n = 0; n < 2 * kHigh; ++n) {
      if (kByWarps && slice / (kSlicesY * kSlicesZ) != n / kEights) continue;
      channels[n].load(scales, row_of(n / 2, n % 2, lane), sums);
    }
    bool bad = false;
#pragma unroll
    for (int high = 0; high < kHigh; ++high) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kByWarps && slice / (kSlicesY * kSlicesZ) != (2 * high + i) / kEights) continue;
        const int index = row_of(high, i, lane);
        Channel<kDoubtful>& channel = channels[2 * high + i];
#pragma unroll
        for (int t = 0; t < kSlicesY * kSlicesZ; ++t) {
          if (slice % (kSlicesY * kSlicesZ) != t) continue;
#pragma unroll
          for (int part = high; part < Sums::kParts; part += kHigh) {
            const int block = part / kHigh;
            const int bx = block % S::kBlocksX;
            const int by = block / S::kBlocksX % S::kBlocksY;
            const int z = block / (S::kBlocksX * S::kBlocksY) * S::kSpreadZ;
            if (z / S::kTileD != t / kSlicesY && !kByDepth) continue;
#pragma unroll
            for (int j = 0; j < S::kRows; ++j) {
              const int eight = (kAlongX ? bx * S::kRows + j : bx) * 8;
              const int x = eight + 2 * (lane % 4);
              const int row = kAlongX ? by : by * S::kRows + j;
              const int y = row * S::kSpreadY;
              if (eight >= S::kWide || row >= S::kTall || y / S::kTileH != t % kSlicesY) continue;
              const int place = (z % S::kTileD * S::kTileH + y % S::kTileH) * S::kTileW;
              put_pair<kDoubtful>(to + index * S::kTilePitch + place + x * S::kSpreadX, x,
                                  {sums.d[part][4 * j + 2 * i] * channel.factor(),
                                   sums.d[part][4 * j + 2 * i + 1] * channel.factor()},
                                  first, channel.smallest);
            }
          }
        }
        bad = bad || channel.bad();
      }
    }
    return bad;
  }

  // The largest sum of each window.
  template <bool kDoubtful>
  __device__ __forceinline__ bool write_windows(const RowScale* scales, float* to,
                                                int slice) const {
    const int lane = hopper::lane();
    const ConvWindows<S, const Sums> windows{sums, lane % 4};
    bool bad = false;
#pragma unroll
    for (int high = 0; high < kHigh; ++high) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kByWarps && slice / (kSlicesY * kSlicesZ) != (2 * high + i) / kEights) continue;
        const int index = row_of(high, i, lane);
        float* const row = to + index * S::kTilePitch;
        Channel<kDoubtful> channel;
        channel.load(scales, index, sums);
#pragma unroll
        for (int t = 0; t < kSlicesY * kSlicesZ; ++t) {
          if (slice % (kSlicesY * kSlicesZ) != t) continue;
#pragma unroll
          for (int place = 0; place < S::kTileD * S::kTileH; ++place) {
            const int z = t / kSlicesY * S::kTileD + place / S::kTileH;
            const int y = t % kSlicesY * S::kTileH + place % S::kTileH;
            windows.template put<kDoubtful>(row + place * S::kTileW, high, i, z, y,
                                            channel.smallest);
          }
        }
        bad = bad || channel.bad();
      }
    }
    return bad;
  }

  // Results in doubt, computed again: each warp has channels of its own. Called where it is rare,
  // so that its registers are not the main loop's.
  static __device__ __noinline__ void repair(const ConvOperands* g, ConvTile<C> tile,
                                             float* factors, const RowScale* scales, float doubt,
                                             float most_down, int channel_end) {
    constexpr int kWarps = kThreads / 32;
    constexpr int kPlaces = S::kTileD * S::kTileH * S::kTileW;
    const int lane = hopper::lane();
    const int own = kByWarps ? 0 : static_cast<int>(threadIdx.x / 32 % 4);
#pragma unroll 1
    for (int row = own; row < S::kTileChannels; row += kWarps) {
      if (tile.channel + row >= channel_end) break;
      const float bound = Sums::least(scales[row], doubt, most_down);
      const float scale = tile.scale(row);
      const bool turned = P::kTurns && (__float_as_uint(scales[row].scale) >> 31) != 0;
      float* const values = tile.at + row * S::kTilePitch;
      bool any = false;
#pragma unroll 8
      for (int place = lane; place < kPlaces; place += 32) {
        any |= !(fabsf(values[place] * scale) > bound);
      }
      if (!__any_sync(0xffffffff, any)) continue;
#pragma unroll 1
      for (int first = 0; first < kPlaces; first += 32) {
        const int place = first + lane;
        const int z = tile.z + place / (S::kTileH * S::kTileW);
        const int y = tile.y + place / S::kTileW % S::kTileH;
        const int x = tile.x + place % S::kTileW;
        const bool inside = place < kPlaces && z < S::kSeenD && y < S::kSeenH && x < S::kSeenW;
        const float value = inside ? values[place] * scale : 0.0f;
        const bool again = inside && !(fabsf(value) > bound);
        unsigned owners = __ballot_sync(0xffffffff, again);
        if (inside) values[place] = value;
#pragma unroll 1
        while (owners != 0) {
          const int owner = __ffs(static_cast<int>(owners)) - 1;
          owners &= owners - 1;
          const float found =
              largest_again(*g, tile.sample, tile.channel + row, turned,
                            __shfl_sync(0xffffffff, z, owner) * S::kApartD - S::kWindowPadD,
                            __shfl_sync(0xffffffff, y, owner) * S::kApartH - S::kWindowPadH,
                            __shfl_sync(0xffffffff, x, owner) * S::kApartW - S::kWindowPadW);
          if (lane == owner) values[place] = found;
        }
      }
      __syncwarp();
      if (kUnscaled && lane == 0) factors[row] = 1.0f;  // what is there now is results
    }
  }

  // One result, or the largest of those that begin there, or the smallest.
  static __device__ __forceinline__ float largest_again(const ConvOperands& g, int64_t sample,
                                                        int channel, bool turned, int z, int y,
                                                        int x) {
    float most = turned ? kw::detail::kInf : -kw::detail::kInf;
#pragma unroll 1
    for (int n = 0; n < S::kLargestD * S::kLargestH * S::kLargestW; ++n) {
      const int at_z = z + n / (S::kLargestH * S::kLargestW);
      const int at_y = y + n / S::kLargestW % S::kLargestH;
      const int at_x = x + n % S::kLargestW;
      const bool there = static_cast<unsigned>(at_z) < S::kOutD &&
                         static_cast<unsigned>(at_y) < S::kOutH &&
                         static_cast<unsigned>(at_x) < S::kOutW;
      if (S::kEdges && !there) continue;
      const float next = detail::recompute<S>(g, sample, channel, at_z, at_y, at_x);
      most = turned ? minimum(most, next) : maximum(most, next);
    }
    return most;
  }

  // What the epilogue multiplies the slice's sums by.
  __device__ __forceinline__ void note_factors(float* factors, const RowScale* scales) const {
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x % kThreads); c < S::kTileChannels; c += kThreads) {
      factors[c] = scales[c].scale * sums.down;
    }
  }

  // Where a slice is, with results of this phase, if not of all.
  __device__ __forceinline__ ConvTile<C> tile_of(const ConvItem& item, int slice, float* to,
                                                 int phase) const {
    const int unit = kByWarps ? sums.group * 4 + warp : sums.group;
    const int place = slice % (kSlicesY * kSlicesZ);
    ConvTile<C> tile;
    tile.at = to;
    tile.scales = reinterpret_cast<float*>(sums.shared + M::kFactorsAt) + unit * S::kTileChannels;
    tile.sample = item.sample;
    tile.channel = item.channels / S::kTilesC * S::kGroupOut + first_channel(item, slice);
    const int z = item.z + S::kWindowPadD + sums.deep();
    const int y = item.y + S::kWindowPadH + sums.tall();
    const int x = item.x + S::kWindowPadW + sums.wide();
    tile.z = z * S::kSpreadZ / S::kWindowStepD + place / kSlicesY * S::kTileD +
             (kByDepth ? S::phase_z(phase) : 0);
    tile.y = y * S::kSpreadY / S::kWindowStepH + place % kSlicesY * S::kTileH +
             (kByRow ? S::phase_y(phase) : 0);
    tile.x = x * S::kSpreadX / S::kWindowStepW;
    tile.barrier = 4 + sums.group;
    return tile;
  }

  __device__ __forceinline__ bool exists(const ConvItem& item, int slice,
                                         const ConvTile<C>& tile) const {
    return first_channel(item, slice) < S::kGroupOut && tile.z < S::kSeenD && tile.y < S::kSeenH &&
           tile.x < S::kSeenW;
  }

  // A slice to the epilogue. `bad`: something that was written is in doubt; `reduced`: its rows are
  // done, and elements are to be stored.
  __device__ __forceinline__ void hand_over(const ConvItem& item, int slice, float* to, bool bad,
                                            int phase, bool reduced) const {
    const ConvTile<C> tile = tile_of(item, slice, to, phase);
    float* const factors = const_cast<float*>(tile.scales);
    if constexpr (kUnscaled) note_factors(factors, row_scales(item) + slice_channel(slice));
    const bool any = detail::sync_any<kThreads>(tile.barrier, bad);
    const bool there = exists(item, slice, tile);
    if constexpr (Loop::kScaled) {
      if (any && there) {
        repair(&g, tile, factors, row_scales(item) + slice_channel(slice), sums.doubt,
               sums.most_down, (item.channels / S::kTilesC + 1) * S::kGroupOut);
        detail::sync_epilogue<kThreads>(tile.barrier);
      }
    }
    if (there) {
      const ConvEpilogue<P, C> epilogue{a};
      const int thread = static_cast<int>(threadIdx.x % kThreads);
      if constexpr (P::kInRegisters) {
        if (reduced) {
          epilogue.store(tile, thread);
        } else {
          epilogue.run(tile, thread);
        }
      } else {
        epilogue.run(tile, thread);
      }
    }
    detail::sync_epilogue<kThreads>(tile.barrier);
  }

  // Calls f(rows, tile, scales, high, i, t) for what the thread has of each slice that exists: its
  // t-th part of the places; where weights are rows, channels `high * 64 + 8 * i`.
  template <class F>
  __device__ __forceinline__ void each_slice(const ConvItem& item, float* to, const F& f) {
    constexpr int kChannels = kPixels ? 1 : 2 * kHigh;
#pragma unroll
    for (int n = 0; n < kChannels; ++n) {
#pragma unroll
      for (int t = 0; t < kSlicesY * kSlicesZ; ++t) {
        const int slice = (kByWarps ? n * kSlicesY * kSlicesZ : 0) + t;
        const ConvTile<C> tile = tile_of(item, slice, to, 0);
        if (!exists(item, slice, tile)) continue;
        f(ConvRows<P, Loop, S>{a, sums}, tile, row_scales(item) + slice_channel(slice), n / 2,
          n % 2, t);
      }
    }
  }

  // Reductions over places, in registers.
  __device__ __forceinline__ void reduce(const ConvItem& item, float* to) {
    each_slice(item, to,
               [](const auto& rows, const ConvTile<C>& tile, const RowScale* scales, int high,
                  int i, int t) { rows.reduce(tile, scales, high, i, t); });
    detail::sync_epilogue<kThreads>(4 + sums.group);
  }

  // Whether all results can be believed, as those who share slices see it.
  __device__ __forceinline__ bool none_in_doubt(const ConvItem& item, float* to) {
    bool bad = false;
    each_slice(item, to,
               [&](const auto& rows, const ConvTile<C>& tile, const RowScale* scales, int high,
                   int i, int t) { bad = bad || rows.in_doubt(tile, scales, high, i, t); });
    return !detail::sync_any<kThreads>(4 + sums.group, bad);
  }

  // Reductions over channels, in registers, unless results are in doubt; whether they were done.
  __device__ __forceinline__ bool reduce_across(const ConvItem& item, float* to) {
    const ConvTile<C> tile = tile_of(item, 0, to, 0);
    const bool there = exists(item, 0, tile);
    ConvAcross<P, Loop, S> across{a, sums, tile, row_scales(item)};
    if (doubtful() && detail::sync_any<kThreads>(tile.barrier, there && across.in_doubt())) {
      return false;
    }
    if (there) across.reduce();
    return true;
  }

  // The slice's first channel in the block's tile.
  __device__ __forceinline__ int slice_channel(int slice) const {
    const int c = slice / (kSlicesY * kSlicesZ);
    const int eight = c * kEights;
    return sums.channels() + (kByWarps ? eight / 2 * 64 + warp * 16 + eight % 2 * 8 : 0);
  }

  // The same in its group of channels.
  __device__ __forceinline__ int first_channel(const ConvItem& item, int slice) const {
    return item.channels % S::kTilesC * S::kBlockChannels + slice_channel(slice);
  }

  __device__ __forceinline__ const RowScale* row_scales(const ConvItem& item) const {
    return reinterpret_cast<const RowScale*>(sums.shared + M::kScalesAt) +
           item.channels * S::kBlockChannels;
  }

  // The packed weights and their scales, which the kernel before this one makes, or an earlier one.
  __device__ __forceinline__ void fetch_weights() {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    await_turn();
    if (S::kResident != 0 && thread == 0) {
      constexpr int kBytes = S::kSteps * M::kWeightsStep;
      const auto* const from = static_cast<const uint8_t*>(g.packed) +
                               int64_t{hopper::block_index() % S::kChannelTiles} * kBytes;
      hopper::arrive_expecting(sums.barriers.weights, kBytes);
      detail::copy_bytes(sums.shared + M::kWeightsAt, from, kBytes, sums.barriers.weights);
    }
    if constexpr (Loop::kScaled) {
      auto* const scales = reinterpret_cast<RowScale*>(sums.shared + M::kScalesAt);
      for (int i = thread; i < S::kChannelTiles * S::kBlockChannels; i += 256) {
        scales[i] = static_cast<const RowScale*>(g.scales)[i];
      }
      hopper::sync_threads<256>(6);
    }
    if (S::kResident != 0) hopper::wait(sums.barriers.weights, 0);
    if constexpr (S::kWeightRing != 0) sums.ring.begin();
  }

  __device__ __forceinline__ void run() {
    const int unit = kByWarps ? sums.group * 4 + warp : sums.group;
    float* const to = reinterpret_cast<float*>(sums.shared + M::kTilesAt + unit * M::kTile);
    fetch_weights();
    look_at_weights();
    sums.begin();
#pragma unroll 1
    for (int64_t index = hopper::block_index(); index < items; index += hopper::block_count()) {
      const ConvItem item = ConvItem::at(index, S{});
      if constexpr (S::kPhases == 1) {
        sums.sum(index, 0);
        if constexpr (S::kEdges) {
          ConvWindows<S, Sums>{sums, hopper::lane() % 4}.leave_out_edges(item);
        }
        if constexpr (P::kAcross) {
          if (reduce_across(item, to)) continue;
        }
        bool reduced = false;
        if constexpr (P::kInRegisters) {
          reduced = !doubtful() || none_in_doubt(item, to);
          if (reduced) reduce(item, to);
          if (reduced && !P::kStoresElements) continue;
        }
#pragma unroll 1
        for (int slice = 0; slice < kSlices; ++slice) {
          const bool bad = write(row_scales(item) + slice_channel(slice), to, slice, 0, !reduced);
          hand_over(item, slice, to, bad, 0, reduced);
        }
      } else {
        run_phases(index, item, to);
      }
    }
  }

  // The phases of a tile meet in its slice. For the largest of them, the last one knows of doubts.
  __device__ __forceinline__ void run_phases(int64_t index, const ConvItem& item, float* to) {
    bool bad = false;
    float doubt = 0.0f;
    float most_down = 0.0f;
#pragma unroll 1
    for (int phase = 0; phase < S::kPhases; ++phase) {
      sums.sum(index, phase);
      sums.doubt = doubt = maximum(doubt, sums.doubt);
      sums.most_down = most_down = fmaxf(most_down, sums.most_down);
      const bool found = write(row_scales(item) + sums.channels(), to, 0, phase, true);
      bad = found || (S::kPhaseMax == 0 && bad);
      if ((phase + 1) % kTogether == 0) {
        hand_over(item, 0, to, bad, phase, false);
        bad = false;
      }
    }
  }
};

template <class Loop, class P, class C>
__global__ void __launch_bounds__(384, 1)
    conv_kernel(const ConvOperands g, const typename P::Args a, const int64_t items,
                const __grid_constant__ CUtensorMap map) {
#ifdef KW_HOPPER
  using S = ConvShape<C>;
  using M = ConvMemory<Loop, S>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ ConvBarriers<S> barriers;
  __shared__ ConvStage stages[S::kStages];
  __shared__ ConvVote vote;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      hopper::init(barriers.full[s], S::kResident != 0 || S::kWeightRing != 0 ? 1 : 2);
      hopper::init(barriers.empty[s], 8);
    }
    for (int s = 0; s < 2 * S::kWeightRing; ++s) {
      hopper::init(barriers.ring_full[s % 2][s / 2], 1);
      hopper::init(barriers.ring_empty[s % 2][s / 2], 4);
    }
    hopper::init(barriers.weights, 1);
    for (int s = 0; M::kBoxed && s < S::kAhead; ++s) {
      hopper::init(barriers.come[s], 1);
      hopper::init(barriers.read[s], 4);
    }
    hopper::publish_barriers();
  }
  ConvFeeder<Loop, S>::Elements::tabulate(shared);
  if constexpr (S::kListed) {
    auto* const table = reinterpret_cast<uint32_t*>(shared + M::kTableAt);
    for (int p = static_cast<int>(threadIdx.x); p <= S::kPhases; p += 384) {
      table[S::kDepthSteps + p] = static_cast<uint32_t>(S::steps_before(p));
    }
    for (int i = static_cast<int>(threadIdx.x); i < S::kDepthSteps; i += 384) {
      int step = i;
      int phase = 0;
      while (step >= S::depth_steps(phase)) step -= S::depth_steps(phase++);
      table[i] = S::places_of(phase, step);
    }
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == 0) {
    hopper::give_registers<88>();
    ConvFeeder<Loop, S>{g, &map, shared, barriers, stages, vote, items}.run();
  } else {
    hopper::take_registers<208>();
    ConvConsumer<Loop, P, S>{
        g, a, items, {shared, barriers, stages, warpgroup - 1, g.packed, items}}
        .run();
  }
#endif
}

namespace detail {

// All that the map of an input is made from. Libraries share what they have under the same name,
// and another one's convolution may be called the same: nothing may be left out.
struct InputKey {
  void* at;
  cuuint64_t sizes[4];
  cuuint32_t box[4];

  bool operator==(const InputKey& other) const {
    bool same = at == other.at;
    for (int i = 0; i < 4; ++i) {
      same = same && sizes[i] == other.sizes[i] && box[i] == other.box[i];
    }
    return same;
  }
};

// The input as (x, y, z, channel of all samples), which is fetched in boxes.
template <class Loop, class S>
bool describe_input(CUtensorMap& map, const ConvOperands& g) {
  using M = ConvMemory<Loop, S>;
  // Drivers up to 13.1 may misread the map of a tensor under 128 KiB. Where no box reaches beyond
  // the last channel, the map may claim more of them than there are.
  constexpr bool kInside = S::kGroupIn % M::kBoxChannels == 0 && S::kAllChunks % S::kChunks == 0;
  constexpr int64_t kLeast =
      kInside ? (128 << 10) / (int64_t{S::kInD} * S::kInH * S::kInW * 4) + 1 : 0;
  const int64_t channels = g.batch * S::kCin;
  const InputKey key{
      const_cast<void*>(g.input),
      {S::kInW, S::kInH, S::kInD, static_cast<cuuint64_t>(channels < kLeast ? kLeast : channels)},
      {M::kBoxWide, S::kBoxTall, S::kBoxDeep, M::kBoxChannels}};
  thread_local Recent<InputKey, CUtensorMap, 8> known;
  return known.find(key, map, [](const InputKey& k, CUtensorMap& made) {
    cuuint64_t strides[3];  // of all axes but the first, in bytes
    for (int i = 0; i < 3; ++i) strides[i] = (i == 0 ? 4 : strides[i - 1]) * k.sizes[i];
    const cuuint32_t step[] = {1, 1, 1, 1};
    const hopper::EncodeMap encode = hopper::encode_map();
    return encode != nullptr &&
           encode(&made, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, k.at, k.sizes, strides, k.box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  });
}

}  // namespace detail

template <class Loop, class P, class C>
cudaError_t conv(const ConvOperands& g, const typename P::Args& a, cudaStream_t stream) {
  using S = ConvShape<C>;
  using M = ConvMemory<Loop, S>;
  static_assert(M::kAll <= 226 * 1024, "the tile must fit");
  static_assert(S::kSplitC * S::kSplitX * S::kSplitY * S::kSplitZ == 2, "two warpgroups");
  static_assert(S::kPack == 1 || (S::kChunks == 1 && S::kSteps == 1 && S::kTransposed == 0),
                "taps are packed where one chunk has all channels");
  static_assert(S::kResident == 0 || S::kChannelTiles <= 64, "a block keeps its channels");
  static_assert(S::kWeightRing == 0 || (S::kSplitC == 2 && S::kResident == 0 && S::kSteps > 1 &&
                                        S::kPhases == 1 && S::kPromote == 0),
                "a ring is for the stages of a warpgroup's own channels");
  if (g.batch == 0) return cudaSuccess;
  if (!g.goes_on) {
    const Grid packing{static_cast<unsigned>(S::kChannelTiles * S::kBlockChannels), 128, stream};
    const cudaError_t error = launch(detail::pack_weights<Loop, P, S>, packing, g, a);
    if (error != cudaSuccess) return error;
  }
  const auto kernel = conv_kernel<Loop, P, C>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), M::kAll);
  if (error != cudaSuccess) return error;
  CUtensorMap map{};
  if (M::kBoxed && !detail::describe_input<Loop, S>(map, g)) return cudaErrorInvalidValue;
  const int64_t items = g.batch * S::kPlaceTiles * S::kChannelTiles;
  static const int processors = [] {
    int device = 0;
    int found = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
    return found;
  }();
  // Each block stays with its channels: as many blocks as are a multiple of the tiles of channels.
  const int64_t most =
      S::kResident != 0 ? processors / S::kChannelTiles * S::kChannelTiles : processors;
  const Grid grid{static_cast<unsigned>(items < most ? items : most), 384, stream, M::kAll};
  return launch(kernel, grid, g, a, items, map);
}

}  // namespace kw
