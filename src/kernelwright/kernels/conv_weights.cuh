// The weights of a convolution as its tensor cores read them.
//
// [channel tile][stage][warpgroup][plane][chunk][channel][8 halves]: what a tile multiplies in one
// stage is one run of memory, or one for each warpgroup that fetches its own. float32 weights are
// scaled by a power of two for each output channel and split as rows of a product are (split.cuh);
// what is lost is bounded by 2^-25 for each small element. A block of threads packs one channel;
// those that a tile has beyond the last one are zero. Where an epilogue is given the largest of
// several results and wants a channel's smallest (P::turned), its weights and its scale are
// multiplied by -1. Where it is given means of results, a packed weight is a sum of weights in
// memory (conv_taps.cuh).
#pragma once

#include "conv_taps.cuh"
#include "split.cuh"

namespace kw {

template <hopper::Element kType, class Type, int kCount, bool kFromFloat>
struct ConvLoop {
  static constexpr hopper::Element kElement = kType;
  using Input = Type;
  static constexpr int kPlanes = kCount;
  static constexpr bool kScaled = kFromFloat;
};

// float32 from pairs of float16, float32 at the precision of TF32 from single ones, and what is in
// memory.
using ConvSplitFloat = ConvLoop<hopper::Element::kFloat16, float, 2, true>;
using ConvRoundedFloat = ConvLoop<hopper::Element::kFloat16, float, 1, true>;
using ConvFloat16 = ConvLoop<hopper::Element::kFloat16, half_t, 1, false>;
using ConvBfloat16 = ConvLoop<hopper::Element::kBfloat16, bfloat16_t, 1, false>;

// `packed` and `scales` are room for what a convolution makes of its weights: packed_bytes() and
// kChannelTiles * kBlockChannels RowScales. One that `goes_on` finds them made, by a convolution of
// the same input before it.
struct ConvOperands {
  const void* input;
  const void* weight;
  void* packed;
  void* scales;
  int64_t batch;
  bool goes_on = false;
};

namespace detail {

template <class Loop, class P, class S>
__global__ void __launch_bounds__(128)
    pack_weights(const ConvOperands g, const typename P::Args a) {
  using Input = typename Loop::Input;
  constexpr int kIn = S::kCin / S::kGroups;
  constexpr int kOut = S::kCout / S::kGroups;
  constexpr int kChunks = 2 * S::kDepthSteps;
  await_turn();
  const auto* const weight = static_cast<const Input*>(g.weight);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  const int tile = row / S::kBlockChannels;
  const int within = tile % S::kTilesC * S::kBlockChannels + row % S::kBlockChannels;
  const int group = tile / S::kTilesC;
  const int out = group * S::kGroupOut + within;
  const bool exists = within < S::kGroupOut;
  const int first_in = exists ? out / kOut * kIn : 0;  // of the channel's own group

  // Weights that are sums are summed up once: few threads have chunks to pack, many a sum.
  constexpr bool kKept = S::kMean > 1 && kIn * S::kTaps <= 8192;
  __shared__ float sums[kKept ? kIn * S::kTaps : 1];
  const auto weight_at = [&](int in, int tap) {
    if constexpr (kKept) return sums[in * S::kTaps + tap];
    return weight_of<S>(weight, out, first_in + in, tap);
  };

  static_assert(Loop::kScaled || !P::kTurns, "the scale brings the sign back");
  static_assert(Loop::kScaled || S::kMean == 1, "sums of weights are float32, and so is repairing");
  float up = 1.0f;
  if constexpr (Loop::kScaled) {
    float sign = 1.0f;
    if constexpr (P::kTurns) sign = exists && P::turned(a, out) ? -1.0f : 1.0f;
    split::Extent extent;
    const int count = exists ? kIn * S::kTaps : 0;
    for (int i = thread; i < count; i += 128) {
      const auto x = weight_of<S>(weight, out, first_in + i / S::kTaps, i % S::kTaps);
      if constexpr (kKept) sums[i] = x;
      extent.add(x);
    }
    __shared__ uint32_t mosts[4];
    __shared__ unsigned smalls;
    const uint32_t in_warp = split::warp_max(extent.most);
    if (thread == 0) smalls = 0;
    if (thread % 32 == 0) mosts[thread / 32] = in_warp;
    __syncthreads();
    const split::Scaling scaling(max(max(mosts[0], mosts[1]), max(mosts[2], mosts[3])));
    up = scaling.up * sign;
    if (scaling.loses<Loop::kPlanes>(extent)) {
      const uint32_t bound = __float_as_uint(split::kSmallest<Loop::kPlanes> * scaling.down) - 1;
      unsigned own = 0;
      for (int i = thread; i < count; i += 128) {
        const float x = weight_at(i / S::kTaps, i % S::kTaps);
        own += (__float_as_uint(x) & 0x7fffffffu) - 1 < bound ? 1 : 0;
      }
      atomicAdd(&smalls, own);
    }
    __syncthreads();
    if (thread == 0) {
      const float residue = static_cast<float>(smalls) * 0x1p-25f;
      RowScale scale = scaling.template scale<Loop::kPlanes>(residue);
      scale.scale *= sign;
      static_cast<RowScale*>(g.scales)[row] = scale;
    }
  }

  constexpr int kAll = S::kSteps * kChunks;
  for (int i = thread; i < kAll; i += 128) {
    const int step = i / kChunks;
    int index = i % kChunks;
    int phase = 0;
    while (index >= 2 * S::depth_steps(phase)) index -= 2 * S::depth_steps(phase++);
    const ConvChunk chunk = S::chunk(phase, index);
    uint32_t planes[4][Loop::kPlanes];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      Input x[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int lane = 2 * pair + half;
        const int in =
            (step * S::kChunks + chunk.group) * S::kLaneChannels + lane % S::kLaneChannels;
        const int tap_x = chunk.tap[2] + lane / S::kLaneChannels;
        const int from = group * S::kGroupIn + in;
        const bool there = exists && chunk.exists && in < S::kGroupIn && tap_x < S::kKernelW &&
                           from / kIn == out / kOut;
        const int tap = (chunk.tap[0] * S::kKernelH + chunk.tap[1]) * S::kKernelW + tap_x;
        x[half] = there ? weight_at(from - first_in, tap) : Input{};
      }
      if constexpr (Loop::kScaled) {
        split::split_pair<Loop::kPlanes>(float2{x[0] * up, x[1] * up}, planes[pair]);
      } else {
        planes[pair][0] = uint32_t{x[0].bits} | uint32_t{x[1].bits} << 16;
      }
    }
    const int run = row % S::kBlockChannels / S::kWeightRows;
    auto* const to =
        static_cast<uint4*>(g.packed) +
        (((int64_t{tile} * S::kSteps + step) * S::kWeightRuns + run) * Loop::kPlanes * kChunks +
         i % kChunks) *
            S::kWeightRows +
        row % S::kWeightRows;
#pragma unroll
    for (int p = 0; p < Loop::kPlanes; ++p) {
      to[int64_t{p} * kChunks * S::kWeightRows] = {planes[0][p], planes[1][p], planes[2][p],
                                                   planes[3][p]};
    }
  }
}

}  // namespace detail

}  // namespace kw
