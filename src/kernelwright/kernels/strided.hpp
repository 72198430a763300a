// Row programs on the CPU where rows, not elements, are neighbours in memory: lanes are rows.
#pragma once

#include "chunks.hpp"

namespace kw {

// V neighbouring rows at once; every lane has its own accumulator and its own results.
template <class P, int V>
KW_FN void strided_rows(const typename P::Args& a, int64_t row) {
  const int64_t elements = P::elements(a);
  typename P::template Scalars<V> s;
  for_each_stage<P>([&](auto stage) KW_INLINE {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    Vec<V> total = identities<kOp, V>();
    for (int64_t e = 0; e < elements; ++e) {
      typename P::template Fields<V> f;
      replay<P, I, V, V>(f, s, a, Cursor{row, e});
      accumulate<kOp, V>(total, P::contribution(stage, f, s, a, Cursor{row, e}));
    }
    P::finish(stage, s, total, a);
  });
  if constexpr (P::kStoresElements) {
    for (int64_t e = 0; e < elements; ++e) {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    }
  }
  P::store_row(s, a, Cursor{row, 0});
}

// kRun rows are neighbours (0: all of them); a block of lanes must not straddle the end of such a
// run.
template <class P, class C>
void strided(const typename P::Args& a, int threads) {
  constexpr int V = C::kVec;
  const int64_t rows = P::rows(a);
  if (rows == 0) return;
  const int64_t run = C::kRun ? C::kRun : rows;
  const int64_t blocks = (run + V - 1) / V;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < rows / run * blocks; ++i) {
    const int64_t begin = i / blocks * run + i % blocks * V;
    const int64_t end = std::min(begin + V, (i / blocks + 1) * run);
    if (end - begin == V) {
      strided_rows<P, V>(a, begin);
    } else {
      for (int64_t row = begin; row < end; ++row) strided_rows<P, 1>(a, row);
    }
  }
}

}  // namespace kw
