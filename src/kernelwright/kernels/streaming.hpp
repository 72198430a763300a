// Row programs on the CPU for rows of any length: each stage reads the row again.
#pragma once

#include "chunks.hpp"

namespace kw {

template <class P, class C>
KW_FN void streaming_row(const typename P::Args& a, int64_t row) {
  constexpr int V = C::kVec;
  const int64_t elements = P::elements(a);
  const int64_t run = C::kRun ? C::kRun : elements;
  typename P::template Scalars<1> s;
  for_each_stage<P>([&](auto stage) KW_INLINE {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    StageTotal<P, I, V> total;
    for_each_chunk<V, C::kRun>(0, elements, run, [&](auto lanes, int64_t, int64_t e) KW_INLINE {
      constexpr int W = decltype(lanes)::value;
      typename P::template Fields<W> f;
      replay<P, I, W, 1>(f, s, a, Cursor{row, e});
      const Vec<W> x = P::contribution(stage, f, s, a, Cursor{row, e});
      if constexpr (W == V) {
        total.add(x);
      } else {
        total.add_some(x);
      }
    });
    P::finish(stage, s, Vec<1, TotalOf<P, I>>{{combine_lanes<kOp>(total.all())}}, a);
  });
  if constexpr (P::kStoresElements) {
    for_each_chunk<V, C::kRun>(0, elements, run, [&](auto lanes, int64_t, int64_t e) KW_INLINE {
      constexpr int W = decltype(lanes)::value;
      typename P::template Fields<W> f;
      replay<P, P::kStages, W, 1>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    });
  }
  P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
void streaming(const typename P::Args& a, int threads) {
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t row = 0; row < P::rows(a); ++row) streaming_row<P, C>(a, row);
}

}  // namespace kw
