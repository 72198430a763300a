// For compute-sanitizer: convolutions of each kind.
#include "sanitized_memory.cuh"

namespace sanitized {

template <class Loop, class C>
kw::ConvOperands operands(int64_t batch, float odd) {
  using S = kw::ConvShape<C>;
  const int64_t inputs = batch * S::kCin * S::kInD * S::kInH * S::kInW;
  const int64_t weights = int64_t{S::kCin} * S::kCout / S::kGroups * S::kOwnTaps;
  const int64_t steps = int64_t{S::kChannelTiles} * S::kSteps;
  kw::ConvOperands g{};
  g.packed = room<uint8_t>(steps * kw::ConvMemory<Loop, S>::kWeightsStep);
  g.scales = room<kw::RowScale>(int64_t{S::kChannelTiles} * S::kBlockChannels);
  g.batch = batch;
  if constexpr (Loop::kScaled) {
    g.input = numbers(inputs, odd);
    g.weight = numbers(weights);
  } else {
    g.input = halves(inputs, 0x3c00);
    g.weight = halves(weights, 0x3800);
  }
  return g;
}

// All results, or the largest of each window.
template <class C>
float* seen(int64_t batch) {
  return room<float>(batch * C::kCout * C::kSeenD * C::kSeenH * C::kSeenW);
}

template <class Loop, class C, class P = ConvKept>
void stored(int64_t batch, float odd, const char* what) {
  const auto g = operands<Loop, C>(batch, odd);
  expect(kw::conv<Loop, P, C>(g, {seen<C>(batch)}, nullptr), what);
}

template <class Loop, class C>
void summed(int64_t batch, float odd, const char* what) {
  const auto g = operands<Loop, C>(batch, odd);
  const typename ConvTotals<C>::Args a{seen<C>(batch), room<float>(batch * C::kCout)};
  expect(kw::conv<Loop, ConvTotals<C>, C>(g, a, nullptr), what);
}

template <class Loop, class C>
void across(int64_t batch, float odd, const char* what) {
  const auto g = operands<Loop, C>(batch, odd);
  const typename ConvMost<C>::Args a{room<float>(batch * C::kOutH * C::kOutW)};
  expect(kw::conv<Loop, ConvMost<C>, C>(g, a, nullptr), what);
}

// The second one finds the weights packed.
template <class Loop, class C>
void again(int64_t batch, const char* what) {
  auto g = operands<Loop, C>(batch, 0.5f);
  expect(kw::conv<Loop, ConvKept, C>(g, {seen<C>(batch)}, nullptr), what);
  g.goes_on = true;
  expect(kw::conv<Loop, ConvKept, C>(g, {seen<C>(batch)}, nullptr), what);
}

// Fewer tiles than multiprocessors and more, with numbers that must be computed again and without.
// An input that comes in boxes has 128 KiB at least (see describe_input).
inline void convolutions() {
  using Split = kw::ConvSplitFloat;
  using Rounded = kw::ConvRoundedFloat;
  stored<Split, ConvDense>(3, kNaN, "split convolution");
  stored<Rounded, ConvDense>(40, 1e30f, "rounded convolution");
  stored<kw::ConvBfloat16, ConvHalves>(3, 0.5f, "bfloat16 convolution");
  stored<Rounded, ConvBoxed>(4, kNaN, "boxes");
  stored<Rounded, ConvBoxed>(25, 0.5f, "boxes, many tiles");
  stored<Rounded, ConvOwn>(2, kNaN, "own weights");
  stored<Rounded, ConvOwn>(13, 0.5f, "own weights, many tiles");
  stored<Split, ConvWindows, ConvTurned>(3, kNaN, "largest of windows");
  stored<Split, ConvOverlap, ConvTurned>(3, kNaN, "windows that overlap");
  stored<Split, ConvOverlap, ConvTurned>(17, 0.5f, "windows that overlap, many tiles");
  stored<Split, ConvPlaces>(3, 1e-9f, "places as rows");
  stored<Split, ConvStrided>(50, kNaN, "strided convolution");
  stored<Split, ConvMeans>(50, kNaN, "means of results");
  stored<Rounded, ConvPhases>(3, kNaN, "phases");
  stored<kw::ConvFloat16, ConvPhases>(3, 0.5f, "phases, float16");
  stored<Split, ConvLargest>(3, kNaN, "the largest of the phases");
  again<Split, ConvDense>(3, "packed weights");
  for (const float odd : {0.5f, kNaN}) {
    summed<Split, ConvDense>(3, odd, "sums over places");
    summed<Rounded, ConvPlaces>(24, odd, "sums over places as rows");
    across<Split, ConvPlaces>(24, odd, "the largest channel");
  }
}

}  // namespace sanitized

int main() {
  sanitized::convolutions();
  return 0;
}
