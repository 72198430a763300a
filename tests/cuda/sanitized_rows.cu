// For compute-sanitizer: row programs, whose rows are rows, columns or windows, and masks.
#include "sanitized_memory.cuh"

namespace sanitized {

// Blocks share even rows of 72: two of the eight in a cluster, or of more than collect at once.
struct Clustered : Block {
  static constexpr int kVec = 1, kThreads = 64, kAlone = 64;
};

struct Parted : Everywhere {
  static constexpr int kVec = 1, kThreads = 64, kShort = 64, kParts = 70;
};

// Rows of 67, of which no two begin alike.
struct OddSigmoid : ScaledSigmoid {
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return 67; }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a,
                                   kw::Cursor at) {
    ScaledSigmoid::store_elements(f, s, a, kw::Cursor{0, at.row * 67 + at.element});
  }
};

inline void elementwise() {
  constexpr int64_t kBatch = 37;
  const auto sigmoid = [](int64_t count) {
    return ScaledSigmoid::Args{ones(count), numbers(1), room<kw::half_t>(count), kBatch};
  };
  const ChannelsFirst::Args turned{ones(kBatch * 3456), numbers(24), room<float>(kBatch * 3456),
                                   kBatch};
  const PixelsOfThree::Args pixels{numbers(kBatch * 192), room<float>(kBatch * 192), kBatch};
  expect(kw::pointwise<ScaledSigmoid, kw::check::Grid>(sigmoid(kBatch * 64), nullptr), "pointwise");
  expect(kw::ragged<ScaledSigmoid, kw::check::Grid>(sigmoid(kBatch * 64), nullptr), "ragged");
  expect(kw::ragged<OddSigmoid, kw::check::Grid>(sigmoid(kBatch * 67), nullptr), "ragged, odd");
  expect(kw::turned<ChannelsFirst, Turning<4, 4>>(turned, nullptr), "turned");
  expect(kw::turned<PixelsOfThree, Turning<3, 1>>(pixels, nullptr), "turned, three channels");
}

inline void reductions() {
  constexpr int64_t kBatch = 37;
  auto* const x = numbers(kBatch * 72);
  auto* const mask = room<bool>(kBatch * 72);
  expect(cudaMemset(mask, 1, kBatch * 72), "cudaMemset");
  const auto softmax = [&](int64_t batch) {
    return Softmax::Args{x, room<float>(batch * 72), room<kw::bfloat16_t>(batch), batch};
  };
  const GroupSpread::Args groups{
      x, mask, room<float>(kBatch * 72), room<float>(kBatch * 12), room<float>(kBatch), kBatch};
  expect(kw::resident<Softmax, Warps>(softmax(kBatch), nullptr), "resident");
  expect(kw::resident<GroupSpread, Teams>(groups, nullptr), "resident, segments");
  expect(kw::streaming<Softmax, Block>(softmax(kBatch), nullptr), "streaming");
  expect(kw::streaming<Softmax, Clustered>(softmax(kBatch), nullptr), "streaming, clusters");
  auto* const parts = room<float>(2 * Softmax::kStages * Parted::kParts);
  expect(kw::spread<Softmax, Parted>(softmax(2), parts, nullptr), "spread");
  const auto centred = [](int64_t batch) {
    return Centred::Args{numbers(batch * 72), room<float>(batch * 72), batch};
  };
  expect(kw::resident<Centred, Warps>(centred(kBatch), nullptr), "resident, a double");
  expect(kw::streaming<Centred, Clustered>(centred(kBatch), nullptr), "streaming, a double");
  auto* const wide = room<float>(2 * 2 * Centred::kStages * Parted::kParts);
  expect(kw::spread<Centred, Parted>(centred(2), wide, nullptr), "spread, a double");
}

inline void columns() {
  const auto statistics = [](int64_t batch) {
    constexpr int64_t kColumns = ColumnStatistics::kColumns;
    return ColumnStatistics::Args{numbers(batch * kColumns), room<float>(batch * kColumns),
                                  room<float>(kColumns), room<float>(kColumns), batch};
  };
  auto* const parts =
      room<float>(2 * ColumnStatistics::kStages * HighColumns::kParts * ColumnStatistics::kColumns);
  expect(kw::strided<ColumnStatistics, Columns>(statistics(37), nullptr), "strided");
  expect(kw::spread_strided<ColumnStatistics, HighColumns>(statistics(HighColumns::kShort + 37),
                                                           parts, nullptr),
         "spread, strided");
}

// Epilogues over a product in memory, of 1024 rows. Taken for one row, a bias is as long as it.
inline void products_in_memory() {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kWide = kRows * GroupMinimum::kColumns;
  constexpr int64_t kNarrow = kRows * BelowLargest::kColumns;
  constexpr int64_t kOdd = kRows * Residual::kColumns;
  const Grouped::Args minima{{room<float>(kRows), nullptr}, numbers(kWide)};
  const Apart::Args below{{room<float>(kNarrow), room<float>(kNarrow / BelowLargest::kSegment)},
                          numbers(kNarrow)};
  const AtOnce::Args sums{{numbers(kOdd), numbers(kOdd), room<float>(kOdd)}, numbers(kOdd)};
  expect(kw::resident<Grouped, Groups>(minima, nullptr), "in memory, groups");
  expect(kw::resident<Apart, Warps>(below, nullptr), "in memory, segments");
  expect(kw::pointwise<AtOnce, SingleLanes>(sums, nullptr), "in memory, at once");
}

// Padding that is multiplied, with numbers for which that must not be seen; and large windows.
inline void windows() {
  constexpr int64_t kBatch = 37;
  constexpr int64_t kImage = 13 * 16;
  for (const float odd : {0.5f, kNaN}) {
    const PaddedSum::Args sums{numbers(kBatch * kImage, odd), numbers(9),
                               room<float>(kBatch * 7 * 8), kBatch};
    expect(kw::windows<PaddedSum, Boxes>(sums, nullptr), "windows");
  }
  const NearlyAll::Args largest{numbers(kBatch * kImage), room<float>(kBatch * 9), kBatch};
  expect(kw::pictures<NearlyAll, WholeImages>(largest, nullptr), "pictures");
}

// Several steps of each thread, the last one in part.
inline void masks() {
  for (const int64_t vec : {8, 4, 2, 1}) {
    const int64_t count = 5003 * vec;
    const kw::DropoutMask mask{room<bool>(count),    kw::RandomKeys(37), 3, count, 2,
                               kw::words_below(0.7f)};
    expect(kw::dropout_mask(mask, vec, nullptr), "dropout");
  }
}

inline void rows() {
  elementwise();
  reductions();
  columns();
  products_in_memory();
  windows();
  masks();
}

}  // namespace sanitized

int main() {
  sanitized::rows();
  return 0;
}
