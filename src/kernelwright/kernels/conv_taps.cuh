// The weights of a convolution as they lie in memory: those of one tap.
//
// A tap of a convolution that makes means of another one's results is the sum of some of its taps
// (kMean in conv_shape.cuh). They are summed up for the tensor cores, and gone through one by one
// where a result is computed again: an infinity times weights of either sign is NaN.
#pragma once

#include "conv_shape.cuh"

namespace kw::detail {

// Where a channel's weights for one input channel begin.
template <class S>
__device__ __forceinline__ int64_t weights_at(int out, int in) {
  constexpr int kIn = S::kCin / S::kGroups;
  constexpr int kOut = S::kCout / S::kGroups;
  if constexpr (S::kOwnTransposed != 0) return (int64_t{in} * kOut + out % kOut) * S::kOwnTaps;
  return (int64_t{out} * kIn + in % kIn) * S::kOwnTaps;
}

// Calls f with the place of each weight in memory that a tap is the sum of.
template <class S, class F>
__device__ __forceinline__ void each_weight(int out, int in, int tap, const F& f) {
  const int64_t at = weights_at<S>(out, in);
  if constexpr (S::kMean == 1) {
    f(at + tap);
  } else {
    constexpr ConvTaps kZ = S::z_taps(), kY = S::y_taps(), kX = S::x_taps();
    const int tap_z = tap / (S::kKernelH * S::kKernelW);
    const int tap_y = tap / S::kKernelW % S::kKernelH;
    const int tap_x = tap % S::kKernelW;
    constexpr int kAll = kZ.most() * kY.most() * kX.most();
    constexpr int kAtOnce = kAll <= 32 ? kAll : 1;  // loads that do not wait for one another
#pragma unroll kAtOnce
    for (int n = 0; n < kAll; ++n) {
      const int z = kZ.begin(tap_z) + n / (kY.most() * kX.most());
      const int y = kY.begin(tap_y) + n / kX.most() % kY.most();
      const int x = kX.begin(tap_x) + n % kX.most();
      if (z < kZ.end(tap_z) && y < kY.end(tap_y) && x < kX.end(tap_x)) {
        f(at + (z * S::kOwnKernelH + y) * S::kOwnKernelW + x);
      }
    }
  }
}

template <class S, class Input>
__device__ __forceinline__ Input weight_of(const Input* weight, int out, int in, int tap) {
  if constexpr (S::kMean == 1) {
    return weight[weights_at<S>(out, in) + tap];
  } else {
    float sum = 0.0f;
    each_weight<S>(out, in, tap, [&](int64_t at) { sum += weight[at]; });
    return sum * (1.0f / S::kMean);
  }
}

}  // namespace kw::detail
