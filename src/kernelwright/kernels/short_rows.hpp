// Row programs on the CPU over rows of few elements, such as windows, that are neighbours in
// memory.
#pragma once

#include "strips.hpp"

namespace kw {

// Calls body(e) for every element: e is known to the compiler, and with it all that follows from
// it.
template <class P, int E = 0, class F>
KW_FN void for_each_element(F&& body) {
  if constexpr (E < P::kElements) {
    body(int64_t{E});
    for_each_element<P, E + 1>(body);
  }
}

// V neighbouring rows at once; every lane has its own accumulator and its own results.
template <class P, int V>
KW_FN void take_short_rows(const typename P::Args& a, int64_t row) {
  typename P::template Scalars<V> s;
  for_each_stage<P>([&](auto stage) KW_INLINE {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    using T = TotalOf<P, I>;
    Vec<V, T> total = identities<kOp, V, T>();
    for_each_element<P>([&](int64_t e) KW_INLINE {
      typename P::template Fields<V> f;
      replay<P, I, V, V>(f, s, a, Cursor{row, e});
      accumulate<kOp, V>(total, P::contribution(stage, f, s, a, Cursor{row, e}));
    });
    P::finish(stage, s, total, a);
  });
  if constexpr (P::kStoresElements) {
    for_each_element<P>([&](int64_t e) KW_INLINE {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    });
  }
  P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
void short_rows(const typename P::Args& a, int threads) {
  take_strips<P, C>(a, threads, 16, [&](auto lanes, int64_t row, int count) KW_INLINE {
    constexpr int V = decltype(lanes)::value;
    for (int n = 0; n < count; ++n) take_short_rows<P, V>(a, row + n * V);
  });
}

}  // namespace kw
