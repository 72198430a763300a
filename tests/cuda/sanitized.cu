// Runs every CUDA template and every main loop once on small, awkward sizes, for compute-sanitizer:
// test_sanitizer.py compiles and runs this. The values are checked elsewhere.
#include "check.cu"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using OddPairs = Tiles<128, 3, 2, 1>;  // columns that no vector divides

int failures = 0;

void expect(cudaError_t error, const char* what) {
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  ++failures;
}

// Device memory that knows its exact size, so that a step behind it is seen.
template <class T>
T* room(size_t count) {
  void* at = nullptr;
  expect(cudaMalloc(&at, count * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(at);
}

// Numbers of both signs; every 997th is `odd`, to be met on the paths for what cannot be split.
float* numbers(size_t count, float odd = 0.5f) {
  std::vector<float> host(count);
  for (size_t i = 0; i < count; ++i) {
    host[i] = i % 997 == 996 ? odd : static_cast<float>(std::rand() % 2001 - 1000) / 1000.0f;
  }
  auto* at = room<float>(count);
  expect(cudaMemcpy(at, host.data(), count * sizeof(float), cudaMemcpyHostToDevice), "copy");
  return at;
}

uint16_t* halves(size_t count, uint16_t bits) {
  const std::vector<uint16_t> host(count, bits);
  auto* at = room<uint16_t>(count);
  expect(cudaMemcpy(at, host.data(), count * 2, cudaMemcpyHostToDevice), "copy");
  return at;
}

// The strides of matrices that lie one after the other.
kw::Operand dense(const void* at, int64_t rows, int64_t depth, const kw::Batch& batch,
                  kw::hopper::Major major) {
  const bool along = major == kw::hopper::Major::kDepth;
  return {at, batch.inner * rows * depth, rows * depth, along ? depth : 1, along ? 1 : rows};
}

// A launch in all the ways that it can be decided.
template <class Loop, class P, class C, class Layout = kw::Plain>
void product(const kw::Batch& batch, int64_t rows, int depth, const typename P::Args& a, float odd,
             const char* what) {
  constexpr int kColumns = P::kColumns;
  const auto count = static_cast<size_t>(batch.count());
  const size_t left_size = count * static_cast<size_t>(rows * depth);
  const size_t right_size = count * static_cast<size_t>(kColumns) * static_cast<size_t>(depth);
  kw::GemmOperands g{};
  g.batch = batch;
  g.rows = rows;
  g.columns = kColumns;
  g.depth = depth;
  const void* left = nullptr;
  const void* right = nullptr;
  if constexpr (Loop::kScaled) {
    const auto split = [&](int64_t n) {
      return room<uint16_t>(count * static_cast<size_t>(kw::split::room(n, depth, Loop::kPlanes)));
    };
    left = numbers(left_size, odd);
    right = numbers(right_size);
    g.left_halves = split(rows);
    g.right_halves = split(kColumns);
    g.left_scales = room<kw::RowScale>(count * static_cast<size_t>(rows));
    g.right_scales = room<kw::RowScale>(count * kColumns);
    g.progress = room<unsigned>(3 + (kColumns + C::kBlockN - 1) / C::kBlockN);
  } else {
    left = halves(left_size, 0x3c00);
    right = halves(right_size, 0x3800);
  }
  g.left = dense(left, rows, depth, batch, Layout::kLeft);
  g.right = dense(right, kColumns, depth, batch, Layout::kRight);
  constexpr int kPairs = 3;  // few enough for several waves
  const int64_t all = g.right_rows();
  const kw::GemmDecision ways[] = {{1, kPairs, all, false},
                                   {2, kPairs, all, false},
                                   {1, kPairs, kw::split::kPanel * 8, false},
                                   {2, kPairs, 0, Loop::kScaled}};
  for (const kw::GemmDecision& how : ways) {
    expect(kw::gemm<Loop, P, C, Layout>(g, how, a, nullptr), what);
  }
}

void products() {
  constexpr int64_t kRows = 300;
  const kw::Batch one{1, 1};
  const kw::Batch two{1, 2};
  const auto minima = GroupMinimum::Args{room<float>(2 * kRows * 64)};
  const auto sums =
      Residual::Args{numbers(1001), numbers(2 * kRows * 1001), room<float>(2 * kRows * 1001)};
  const float nan = __builtin_nanf("");
  product<kw::SplitFloat, GroupMinimum, Square>(one, kRows, 520, minima, nan, "split, groups");
  product<kw::SplitFloat, Residual, Single, Across>(two, 150, 67, sums, nan, "split, across");
  product<kw::SplitFloat, Residual, Single, Across>(one, 60, 8203, sums, 0.5f, "split, long rows");
  product<kw::SplitFloat, Residual, OddPairs, Batched>(two, kRows, 203, sums, nan,
                                                       "split, batched");
  product<kw::RoundedFloat, GroupMinimum, Wide>(one, kRows, 200, minima, 1e30f, "rounded");
  product<kw::Bfloat16, GroupMinimum, WidePairs>(one, kRows, 200, minima, 0.5f, "bfloat16");
  product<kw::Bfloat16, GroupMinimum, WidePairs, Across>(two, 200, 72, minima, 0.5f, "across");
}

void rows() {
  constexpr int64_t kBatch = 37;
  auto* x = numbers(kBatch * 72);
  auto* mask = room<bool>(kBatch * 72);
  expect(cudaMemset(mask, 1, kBatch * 72), "cudaMemset");
  const Softmax::Args softmax{x, room<float>(kBatch * 72), room<kw::bfloat16_t>(kBatch), kBatch};
  const GroupSpread::Args spread{
      x,     mask, room<float>(kBatch * 72), room<float>(kBatch * 72), room<float>(kBatch * 72),
      kBatch};
  const ColumnMean::Args mean{numbers(kBatch * 50), room<float>(kBatch * 50), room<float>(50),
                              kBatch};
  const ScaledSigmoid::Args sigmoid{
      reinterpret_cast<const kw::half_t*>(halves(kBatch * 64, 0x3c00)), numbers(1),
      reinterpret_cast<kw::half_t*>(room<uint16_t>(kBatch * 64)), kBatch};
  expect(kw::pointwise<ScaledSigmoid, Flat>(sigmoid, nullptr), "pointwise");
  expect(kw::resident<Softmax, Warps>(softmax, nullptr), "resident");
  expect(kw::resident<GroupSpread, Teams>(spread, nullptr), "resident, segments");
  expect(kw::streaming<Softmax, Block>(softmax, nullptr), "streaming");
  expect(kw::strided<ColumnMean, Columns>(mean, nullptr), "strided");
}

// Columns that fill no warp's four, and a depth that fills no step.
template <bool kShareDepth>
void few(int64_t rows, int columns, int depth) {
  const kw::FewRows g{numbers(static_cast<size_t>(rows) * depth),
                      numbers(static_cast<size_t>(columns) * depth),
                      numbers(columns),
                      room<float>(static_cast<size_t>(rows) * columns),
                      rows,
                      columns,
                      depth};
  expect(kw::few_rows<kShareDepth>(g, nullptr), "few rows");
}

void few_rows() {
  for (const int rows : {1, 3, 8, 9, 15}) {
    few<false>(rows, 77, 36);
    few<true>(rows, 77, 1100);
  }
}

// One and two tiles of rows, whole and not, an odd number of tiles of columns, parts of the depth.
template <int kPlanes>
void thin(int rows, int columns, int depth, int parts, float odd) {
  const auto count = static_cast<size_t>(rows) * columns;
  const kw::ThinOperands g{
      numbers(static_cast<size_t>(rows) * depth),
      numbers(static_cast<size_t>(columns) * depth, odd),
      numbers(columns),
      room<float>(count),
      room<uint16_t>(static_cast<size_t>(kw::split::room(rows, depth, kPlanes))),
      room<kw::RowScale>(rows),
      room<float>(count * parts),
      room<kw::RowScale>(static_cast<size_t>(columns) * parts),
      rows,
      columns,
      depth,
      parts};
  expect(kw::thin_product<kPlanes, 0>(g, nullptr), "thin");
}

void thin_products() {
  const float nan = __builtin_nanf("");
  for (const int rows : {9, 33, 100, 130, 255}) {
    thin<2>(rows, 77, 36, 1, 0.5f);
    thin<2>(rows, 300, 900, 3, rows == 100 ? nan : 1e-9f);
    thin<1>(rows, 130, 200, 2, rows == 33 ? 1e30f : 0.5f);
  }
}

// Fewer tiles than multiprocessors and more, with numbers that must be computed again.
template <class Loop, class C>
void convolution(int64_t batch, float odd, const char* what) {
  using S = kw::ConvShape<C>;
  const size_t inputs = static_cast<size_t>(batch) * S::kCin * S::kInD * S::kInH * S::kInW;
  const size_t weights = static_cast<size_t>(S::kCin) * S::kCout / S::kGroups * S::kOwnTaps;
  const size_t outputs = static_cast<size_t>(batch) * S::kCout * S::kOutD * S::kOutH * S::kOutW;
  const size_t packed = static_cast<size_t>(S::kChannelTiles) * S::kSteps *
                        kw::ConvMemory<Loop, S>::kWeightsStep;
  kw::ConvOperands g{};
  g.packed = room<uint8_t>(packed);
  g.scales = room<kw::RowScale>(static_cast<size_t>(S::kChannelTiles) * S::kBlockChannels);
  g.batch = batch;
  if constexpr (Loop::kScaled) {
    g.input = numbers(inputs, odd);
    g.weight = numbers(weights);
  } else {
    g.input = halves(inputs, 0x3c00);
    g.weight = halves(weights, 0x3800);
  }
  expect(kw::conv<Loop, ConvKept, C>(g, {room<float>(outputs)}, nullptr), what);
}

void convolutions() {
  const float nan = __builtin_nanf("");
  convolution<kw::ConvSplitFloat, ConvDense>(3, nan, "split convolution");
  convolution<kw::ConvRoundedFloat, ConvDense>(40, 1e30f, "rounded convolution");
  convolution<kw::ConvBfloat16, ConvDense>(3, 0.5f, "bfloat16 convolution");
  convolution<kw::ConvSplitFloat, ConvPlaces>(3, 1e-9f, "places as rows");
  convolution<kw::ConvSplitFloat, ConvStrided>(50, nan, "strided");
  convolution<kw::ConvSplitFloat, ConvMeans>(50, nan, "means");
  convolution<kw::ConvRoundedFloat, ConvPhases>(3, nan, "phases");
  convolution<kw::ConvFloat16, ConvPhases>(3, 0.5f, "phases, float16");
  convolution<kw::ConvSplitFloat, ConvLargest>(3, nan, "the largest of the phases");
}

}  // namespace

int main() {
  convolutions();
  rows();
  few_rows();
  thin_products();
  products();
  std::printf("%d failed\n", failures);
  return failures != 0;
}
