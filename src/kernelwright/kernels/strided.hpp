// Row programs on the CPU over rows that are neighbours in memory: each element of a row is far
// from the one before.
#pragma once

#include "strips.hpp"

namespace kw {

// Elements that are added up one by one, and blocks that are.
inline constexpr int kBlock = 16;

template <Combine C, int V>
struct OneByOne {
  Vec<V> total = identities<C, V>();
  template <int N>
  KW_FN void add(const Vec<V> (&x)[N]) {
    for (int n = 0; n < N; ++n) accumulate<C, V>(total, x[n]);
  }
  KW_FN const Vec<V>& all() const { return total; }
};

// A BlockwiseTotal whose blocks somebody else adds up.
template <Combine C, int V, class T>
struct TotalOfBlocks {
  Vec<V, T> done;
  Vec<V, T> blocks;
  int whole;

  KW_FN void begin() {
    fill(done, identity<C, T>());
    fill(blocks, identity<C, T>());
    whole = 0;
  }

  KW_FN void add(const Vec<V, T>& block) {
    accumulate<C, V>(blocks, block);
    if (++whole == kBlock) {
      accumulate<C, V>(done, blocks);
      fill(blocks, identity<C, T>());
      whole = 0;
    }
  }

  KW_FN Vec<V, T> all() const { return combined<C>(done, blocks); }
};

// Vectors of long rows that are taken abreast, at most: two kilobytes of lanes. Each element of
// such a row is in another page of memory, and what lies beside it there is nearly free now, but
// has to be found again later.
template <int V>
inline constexpr int kAbreast = V == 1 ? 1 : 512 / V;

// `count` vectors of V neighbouring rows.
template <class P, int V>
struct LongRows {
  template <class, int I>
  struct Totals {
    TotalOfBlocks<P::kCombine[I], V, TotalOf<P, I>> vectors[kAbreast<V>];
  };
  template <class, int I>
  using Block = std::conditional_t<kIsCentre<P, I>, WideTotal<V>, OneByOne<P::kCombine[I], V>>;
  using Fields = typename P::template Fields<V>;

  typename P::template Scalars<V> s[kAbreast<V>];

  KW_FN void take(const typename P::Args& a, int64_t row, int count) {
    const int64_t elements = P::elements(a);
    for_each_reading<P>([&](auto reading) KW_INLINE { read(reading, a, row, count, elements); });
    if constexpr (P::kStoresElements) {
      for (int64_t e = 0; e < elements; ++e) {
        for (int n = 0; n < count; ++n) {
          const Cursor at{row + n * V, e};
          Fields f;
          replay<P, P::kStages, V, V>(f, s[n], a, at);
          P::store_elements(f, s[n], a, at);
        }
      }
    }
    for (int n = 0; n < count; ++n) P::store_row(s[n], a, Cursor{row + n * V, 0});
  }

  // A block of elements of one vector, then of the next: sums stay in registers, and what is beside
  // a vector is on its way meanwhile.
  template <class R>
  KW_FN void read(R reading, const typename P::Args& a, int64_t row, int count, int64_t elements) {
    OfStages<P, Totals, R::kFirst, R::kEnd> totals;
    for_each_stage_of(reading, [&](auto stage) KW_INLINE {
      for (int n = 0; n < count; ++n) totals.of(stage).vectors[n].begin();
    });
    for (int64_t begin = 0; begin < elements; begin += kBlock) {
      const int64_t end = std::min<int64_t>(begin + kBlock, elements);
      for (int n = 0; n < count; ++n) {
        OfStages<P, Block, R::kFirst, R::kEnd> block;
        int64_t e = begin;
        for (; e + 4 <= end; e += 4) add<4>(reading, block, a, Cursor{row, e}, n);
        for (; e < end; ++e) add<1>(reading, block, a, Cursor{row, e}, n);
        for_each_stage_of(reading, [&](auto stage) KW_INLINE {
          totals.of(stage).vectors[n].add(block.of(stage).all());
        });
      }
    }
    for_each_stage_of(reading, [&](auto stage) KW_INLINE {
      for (int n = 0; n < count; ++n) {
        P::finish(stage, s[n], totals.of(stage).vectors[n].all(), a);
      }
    });
  }

  // N elements of the n-th vector.
  template <int N, class R, class Blocks>
  KW_FN void add(R reading, Blocks& blocks, const typename P::Args& a, Cursor first, int n) {
    OfStages<P, Several<N, V>::template Of, R::kFirst, R::kEnd> several;
    for (int k = 0; k < N; ++k) {
      const Cursor at{first.row + n * V, first.element + k};
      Fields f;
      replay<P, R::kFirst, V, V>(f, s[n], a, at);
      for_each_stage_of(reading, [&](auto stage) KW_INLINE {
        several.of(stage).x[k] = P::contribution(stage, f, s[n], a, at);
      });
    }
    for_each_stage_of(reading,
                      [&](auto stage) KW_INLINE { blocks.of(stage).add(several.of(stage).x); });
  }
};

template <class P, class C>
void strided(const typename P::Args& a, int threads) {
  constexpr int kMost = kAbreast<C::kVec>;
  take_strips<P, C>(a, threads, kMost, [&](auto lanes, int64_t row, int count) KW_INLINE {
    LongRows<P, decltype(lanes)::value> rows;
    rows.take(a, row, count);
  });
}

}  // namespace kw
