// Row programs on the CPU whose rows are a few large windows of the same picture: OpenMP over
// pictures (large_windows.cuh).
#pragma once

#include "chunks.hpp"
#include "large_windows.cuh"

namespace kw {

// A long sum is one of shorter ones, whose roundings are small: of so many lines, and of so many
// columns.
inline constexpr int kLinesOfSum = 16;
inline constexpr int kColumnsOfSum = 16;

template <class P, class C>
KW_FN void picture(const typename P::Args& a, int64_t number) {
  using Taken = LargeWindows<P, C>;
  Taken all(a, number);
  for (int side = 0; side < Taken::kColumns; side += kColumnsOfSum) {
    Taken some(a, number);
    for (int column = side; column < std::min(side + kColumnsOfSum, Taken::kColumns); ++column) {
      for (int line = 0; line < Taken::kLines; line += kLinesOfSum) {
        some.take(column, line, std::min(line + kLinesOfSum, Taken::kLines), 1);
      }
    }
    for (int w = 0; w < Taken::kWindows; ++w) {
      all.total[w] = combine<Taken::kOp>(all.total[w], some.total[w]);
    }
  }
  for (int w = 0; w < Taken::kWindows; ++w) all.store(w, all.total[w]);
}

template <class P, class C>
void pictures(const typename P::Args& a, int threads) {
  const int64_t count = P::rows(a) / LargeWindows<P, C>::kWindows;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < count; ++i) picture<P, C>(a, i);
}

}  // namespace kw
