// Row programs on the CPU where rows, not elements, are neighbours in memory: lanes are rows.
//
// OpenMP over strips of a run of neighbours. Vectors keep to [kLow, kHigh) of a run, where no lane
// of one is beside the data and another is not; rows at its edges are taken one by one.
#pragma once

#include "chunks.hpp"

namespace kw {

// Such as a window.
template <class P>
inline constexpr bool kShortRows = P::kElements > 0 && P::kElements <= 32;

// Calls body(e) for every element. Of a short row, e is known to the compiler, and with it all that
// follows from it.
template <class P, int E = 0, class F>
KW_FN void for_each_element(int64_t elements, F&& body) {
  if constexpr (!kShortRows<P>) {
    for (int64_t e = 0; e < elements; ++e) body(e);
  } else if constexpr (E < P::kElements) {
    body(int64_t{E});
    for_each_element<P, E + 1>(elements, body);
  }
}

// V neighbouring rows at once; every lane has its own accumulator and its own results.
template <class P, int V>
KW_FN void strided_rows(const typename P::Args& a, int64_t row) {
  const int64_t elements = P::elements(a);
  typename P::template Scalars<V> s;
  for_each_stage<P>([&](auto stage) KW_INLINE {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    std::conditional_t<kShortRows<P>, Total<kOp, V>, BlockwiseTotal<kOp, V>> total;
    for_each_element<P>(elements, [&](int64_t e) KW_INLINE {
      typename P::template Fields<V> f;
      replay<P, I, V, V>(f, s, a, Cursor{row, e});
      total.add(P::contribution(stage, f, s, a, Cursor{row, e}));
    });
    P::finish(stage, s, total.all(), a);
  });
  if constexpr (P::kStoresElements) {
    for_each_element<P>(elements, [&](int64_t e) KW_INLINE {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    });
  }
  P::store_row(s, a, Cursor{row, 0});
}

// The rows [begin, end) of a run that starts at `first`. The last vector begins early enough to be
// whole: its first lanes compute again what is there already.
template <class P, class C>
KW_FN void strided_strip(const typename P::Args& a, int64_t first, int64_t begin, int64_t end) {
  constexpr int V = C::kVec;
  int64_t row = begin;
  for (; row < std::min<int64_t>(end, C::kLow); ++row) strided_rows<P, 1>(a, first + row);
  const int64_t stop = C::kRun ? std::min<int64_t>(end, C::kHigh) : end;
  if (stop - row >= V) {
    for (; row < stop; row += V) strided_rows<P, V>(a, first + std::min(row, stop - V));
    row = stop;
  }
  for (; row < end; ++row) strided_rows<P, 1>(a, first + row);
}

// kRun rows are neighbours, 0: all of them.
template <class P, class C>
void strided(const typename P::Args& a, int threads) {
  constexpr int64_t kStrip = C::kVec * (P::kElements > 0 && P::kElements <= 64 ? 16 : 1);
  const int64_t rows = P::rows(a);
  if (rows == 0) return;
  const int64_t run = C::kRun ? C::kRun : rows;
  const int64_t strips = (run + kStrip - 1) / kStrip;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < rows / run * strips; ++i) {
    const int64_t begin = i % strips * kStrip;
    strided_strip<P, C>(a, i / strips * run, begin, std::min(begin + kStrip, run));
  }
}

}  // namespace kw
