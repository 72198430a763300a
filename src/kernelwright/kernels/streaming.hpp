// Row programs on the CPU for rows of any length: each stage reads the row again.
//
// The first sum, which is a norm's mean, is that of the differences to the first element, where
// that is a number like others. A long row of equal numbers would be rounded the same way at every
// step, by several units in the last place of its mean, and the norm divides what is left by nearly
// nothing.
#pragma once

#include "chunks.hpp"

namespace kw {

inline constexpr float kLikeOthers = 1e18f;

// What the elements of a sum are measured from.
template <class P>
KW_FN float origin_of_sum(const typename P::template Scalars<1>& s, const typename P::Args& a,
                          int64_t row) {
  if (P::elements(a) == 0) return 0.0f;
  typename P::template Fields<1> f;
  const float first = P::contribution(Stage<0>{}, f, s, a, Cursor{row, 0}).lanes[0];
  return first > -kLikeOthers && first < kLikeOthers ? first : 0.0f;
}

template <class P, class C>
KW_FN void streaming_row(const typename P::Args& a, int64_t row) {
  constexpr int V = C::kVec;
  const int64_t elements = P::elements(a);
  const int64_t run = C::kRun ? C::kRun : elements;
  typename P::template Scalars<1> s;
  for_each_stage<P>([&](auto stage) KW_INLINE {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    constexpr bool kShifted = I == 0 && kOp == Combine::kSum;
    float origin = 0.0f;
    if constexpr (kShifted) origin = origin_of_sum<P>(s, a, row);
    BlockwiseTotal<kOp, V> total;
    for_each_chunk<V, C::kRun>(0, elements, run, [&](auto lanes, int64_t, int64_t e) KW_INLINE {
      constexpr int W = decltype(lanes)::value;
      typename P::template Fields<W> f;
      replay<P, I, W, 1>(f, s, a, Cursor{row, e});
      Vec<W> x = P::contribution(stage, f, s, a, Cursor{row, e});
      if constexpr (kShifted) {
        KW_LANES
        for (int v = 0; v < W; ++v) x.lanes[v] -= origin;
      }
      if constexpr (W == V) {
        total.add(x);
      } else {
        total.add_some(x);
      }
    });
    float all = combine_lanes<kOp, V>(total.all());
    if constexpr (kShifted) {
      all = static_cast<float>(static_cast<double>(elements) * origin + all);
    }
    P::finish(stage, s, Vec<1>{{all}}, a);
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
