// The program of a product's epilogue as a row program, over a product that lies in memory.
//
// Where the library makes a product (few rows, other GPUs), the program that would have been its
// epilogue runs in a row kernel after it:
//   InMemory<P, T>   reads the product, of type T, where the epilogue has it in registers
//   Segments<P>      takes each segment for a row, if nothing larger is reduced: more rows run in
//                    parallel
//   Flat<P>          takes all rows for one, if nothing is reduced and all that is read and written
//                    lies in one go: no chunk of lanes ends at the end of a row
#pragma once

#include "program.cuh"

namespace kw {

template <class P, class T>
struct InMemory : P {
  struct Args : P::Args {
    const T* product;
  };
  template <int V>
  using Fields = typename P::template Fields<V>;
  template <int L>
  using Scalars = typename P::template Scalars<L>;

  template <int V>
  KW_FN static void load(Fields<V>& f, const Args& a, Cursor at) {
    const auto product = load_row<V>(a.product + at.row * P::kColumns + at.element);
    Vec<V> lanes;
    KW_LANES
    for (int v = 0; v < V; ++v) lanes.lanes[v] = product[v];
    P::begin(f, lanes);
  }

  template <int I, int V, int L>
  KW_FN static Vec<V> contribution(Stage<I> stage, Fields<V>& f, const Scalars<L>& s, const Args& a,
                                   Cursor at) {
    if constexpr (I == 0) load<V>(f, a, at);
    return P::contribution(stage, f, s, a, at);
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    if constexpr (P::kStages == 0) load<V>(f, a, at);
    P::store_elements(f, s, a, at);
  }
};

template <class P>
struct Segments : P {
  static constexpr int kPerRow = P::kElements / P::kSegment;
  static constexpr int kElements = P::kSegment;
  static constexpr int kSegment = 0;
  static constexpr bool kOverSegment[P::kStages] = {};
  static constexpr bool kStoresSegments = false;
  using Args = typename P::Args;
  template <int V>
  using Fields = typename P::template Fields<V>;
  template <int L>
  using Scalars = typename P::template Scalars<L>;

  KW_FN static int64_t rows(const Args& a) { return P::rows(a) * kPerRow; }
  KW_FN static int64_t elements(const Args&) { return kElements; }

  KW_FN static Cursor inside(Cursor at) {
    return {at.row / kPerRow, at.row % kPerRow * kElements + at.element};
  }

  template <int I, int V, int L>
  KW_FN static Vec<V> contribution(Stage<I> stage, Fields<V>& f, const Scalars<L>& s, const Args& a,
                                   Cursor at) {
    return P::contribution(stage, f, s, a, inside(at));
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    P::store_elements(f, s, a, inside(at));
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    P::store_segment(s, a, inside(at));
  }
};

template <class P>
struct Flat : P {
  KW_FN static int64_t rows(const typename P::Args&) { return 1; }
  KW_FN static int64_t elements(const typename P::Args& a) { return P::rows(a) * P::elements(a); }
};

}  // namespace kw
