// Rows on the CPU that are neighbours in memory, where elements are not: lanes are rows.
//
// OpenMP over strips of a run of neighbours. Vectors keep to [kLow, kHigh) of a run, where no lane
// of one is beside the data and another is not; rows at its edges are taken one by one.
#pragma once

#include "chunks.hpp"

namespace kw {

// The rows [begin, end) of a run that starts at `first`: body(lanes, row, count) takes `count`
// vectors of so many rows. The last vector begins early enough to be whole: its first lanes compute
// again what is there already.
template <class C, class F>
KW_FN void take_strip(int64_t first, int64_t begin, int64_t end, F&& body) {
  constexpr int V = C::kVec;
  int64_t row = begin;
  for (; row < std::min<int64_t>(end, C::kLow); ++row) body(Stage<1>{}, first + row, 1);
  const int64_t stop = C::kRun ? std::min<int64_t>(end, C::kHigh) : end;
  if (stop - row >= V) {
    const int whole = static_cast<int>((stop - row) / V);
    body(Stage<V>{}, first + row, whole);
    if (row + whole * V < stop) body(Stage<V>{}, first + stop - V, 1);
    row = stop;
  }
  for (; row < end; ++row) body(Stage<1>{}, first + row, 1);
}

// Strips of `most` vectors, or of fewer, so that every thread has some. kRun rows are neighbours,
// 0: all of them.
template <class P, class C, class F>
KW_FN void take_strips(const typename P::Args& a, int threads, int64_t most, F&& body) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return;
  const int workers = threads_for<P>(a, threads);
  const int64_t strip = C::kVec * std::clamp<int64_t>(rows / (C::kVec * workers), 1, most);
  const int64_t run = C::kRun ? C::kRun : rows;
  const int64_t strips = (run + strip - 1) / strip;
#pragma omp parallel for num_threads(workers) schedule(static)
  for (int64_t i = 0; i < rows / run * strips; ++i) {
    const int64_t begin = i % strips * strip;
    take_strip<C>(i / strips * run, begin, std::min(begin + strip, run), body);
  }
}

}  // namespace kw
