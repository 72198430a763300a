// For compute-sanitizer: products of matrices, with every main loop and layout.
#include "sanitized_memory.cuh"

namespace sanitized {

using OddPairs = Tiles<128, 3, 2, 1>;  // columns that no vector divides

// Matrices that lie one after the other, in lines of a multiple of so many elements.
struct Dense {
  int64_t rows;
  int64_t depth;
  Major major;
  int64_t unit;

  int64_t pitch() const {
    return ((major == Major::kDepth ? depth : rows) + unit - 1) / unit * unit;
  }
  int64_t size() const { return (major == Major::kDepth ? rows : depth) * pitch(); }

  kw::Operand at(const void* first, const kw::Batch& batch) const {
    const bool along = major == Major::kDepth;
    return {first, batch.inner * size(), size(), along ? pitch() : 1, along ? 1 : pitch()};
  }
};

// A launch in all the ways that it can be decided.
template <class Loop, class P, class C, class Layout = kw::Plain>
void product(const kw::Batch& batch, int64_t rows, int depth, const typename P::Args& a, float odd,
             const char* what) {
  constexpr int kColumns = P::kColumns;
  constexpr int kUnit = Loop::kScaled ? 1 : 8;  // the copy engine wants multiples of 16 bytes
  const int64_t count = batch.count();
  const Dense left{rows, depth, Layout::kLeft, kUnit};
  const Dense right{kColumns, depth, Layout::kRight, kUnit};
  kw::GemmOperands g{};
  g.batch = batch;
  g.rows = rows;
  g.columns = kColumns;
  g.depth = depth;
  if constexpr (Loop::kScaled) {
    const auto split = [&](int64_t n) {
      return room<uint16_t>(count * kw::split::room(n, depth, Loop::kPlanes));
    };
    g.left = left.at(numbers(count * left.size(), odd), batch);
    g.right = right.at(numbers(count * right.size()), batch);
    g.left_halves = split(rows);
    g.right_halves = split(kColumns);
    g.left_scales = room<kw::RowScale>(count * rows);
    g.right_scales = room<kw::RowScale>(count * kColumns);
    g.progress = room<unsigned>(3 + (kColumns + C::kBlockN - 1) / C::kBlockN);
  } else {
    g.left = left.at(halves(count * left.size(), 0x3c00), batch);
    g.right = right.at(halves(count * right.size(), 0x3800), batch);
  }
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

inline void large() {
  constexpr int64_t kRows = 300;
  const kw::Batch one{1, 1};
  const kw::Batch two{1, 2};
  const GroupMinimum::Args minima{nullptr, room<float>(2 * kRows * 64)};
  const Residual::Args sums{numbers(1001), numbers(2 * kRows * 1001),
                            room<float>(2 * kRows * 1001)};
  product<kw::SplitFloat, GroupMinimum, Square>(one, kRows, 520, minima, kNaN, "split, groups");
  product<kw::SplitFloat, Residual, Single, Across>(two, 150, 67, sums, kNaN, "split, across");
  product<kw::SplitFloat, Residual, Single, Across>(one, 60, 8203, sums, 0.5f, "split, long rows");
  product<kw::SplitFloat, Residual, OddPairs, Batched>(two, kRows, 203, sums, kNaN,
                                                       "split, batched");
  product<kw::RoundedFloat, GroupMinimum, Wide>(one, kRows, 200, minima, 1e30f, "rounded");
  product<kw::Bfloat16, GroupMinimum, WidePairs>(one, kRows, 200, minima, 0.5f, "bfloat16");
  product<kw::Bfloat16, GroupMinimum, WidePairs, Across>(two, 200, 72, minima, 0.5f,
                                                         "bfloat16, across");
  product<kw::Float16, Residual, Single, Batched>(two, 150, 72, sums, 0.5f, "float16, batched");
}

// Operands that are split and kept.
template <int kPlanes, Major kMajor, bool kInterleave>
void kept(const kw::Batch& batch, int64_t rows, int depth) {
  const Dense x{rows, depth, kMajor, 1};
  const int64_t count = batch.count();
  auto* const planes = room<uint16_t>(count * kw::split::room(rows, depth, kPlanes));
  expect(kw::split_all<kPlanes, kMajor, kInterleave, 0>(
             x.at(numbers(count * x.size(), 1e-9f), batch), batch, planes,
             room<kw::RowScale>(count * rows), rows, depth, nullptr),
         "split");
}

// Columns that fill no warp's four, and a depth that fills no step.
template <bool kShareDepth>
void few(int64_t rows, int columns, int depth, const float* bias) {
  const kw::FewRows g{numbers(rows * depth),
                      numbers(int64_t{columns} * depth),
                      bias,
                      room<float>(rows * columns),
                      rows,
                      columns,
                      depth};
  expect(kw::few_rows<kShareDepth>(g, nullptr), "few rows");
}

// One and two tiles of rows, whole and not, an odd number of tiles of columns, parts of the depth.
template <int kPlanes>
void thin(int rows, int columns, int depth, int parts, float odd) {
  const int64_t count = int64_t{rows} * columns;
  const kw::ThinOperands g{numbers(int64_t{rows} * depth),
                           numbers(int64_t{columns} * depth, odd),
                           numbers(columns),
                           room<float>(count),
                           room<uint16_t>(kw::split::room(rows, depth, kPlanes)),
                           room<kw::RowScale>(rows),
                           room<float>(count * parts),
                           room<kw::RowScale>(int64_t{columns} * parts),
                           rows,
                           columns,
                           depth,
                           parts};
  expect(kw::thin_product<kPlanes, 0>(g, nullptr), "thin");
}

inline void products() {
  large();
  kept<2, Major::kRow, true>({1, 2}, 100, 700);
  kept<1, Major::kDepth, false>({1, 1}, 70, 600);
  for (const int rows : {1, 3, 8, 9, 15}) {
    few<false>(rows, 77, 36, numbers(77));
    few<true>(rows, 77, 1100, nullptr);
  }
  for (const int rows : {9, 33, 100, 130, 255}) {
    thin<2>(rows, 77, 36, 1, 0.5f);
    thin<2>(rows, 300, 900, 3, rows == 100 ? kNaN : 1e-9f);
    thin<1>(rows, 130, 200, 2, rows == 33 ? 1e30f : 0.5f);
  }
}

}  // namespace sanitized

int main() {
  sanitized::products();
  return 0;
}
