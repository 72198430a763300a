// Row programs on the CPU over rows that are neighbours in memory: each element of a row is far
// from the one before.
#pragma once

#include "strips.hpp"

namespace kw {

// Elements that are added up one by one, and blocks that are.
inline constexpr int kBlock = 16;

// A BlockwiseTotal whose blocks somebody else adds up.
template <Combine C, int V>
struct TotalOfBlocks {
  Vec<V> done;
  Vec<V> blocks;
  int whole;

  KW_FN void begin() {
    fill(done, identity<C>());
    fill(blocks, identity<C>());
    whole = 0;
  }

  KW_FN void add(const Vec<V>& block) {
    accumulate<C, V>(blocks, block);
    if (++whole == kBlock) {
      accumulate<C, V>(done, blocks);
      fill(blocks, identity<C>());
      whole = 0;
    }
  }

  KW_FN Vec<V> all() const { return combined<C>(done, blocks); }
};

// One value for each stage [First, End) of a reading: of(stage) is a Each<kCombine[stage]>.
template <class P, template <Combine> class Each, int First, int End>
struct OfStages {
  Each<P::kCombine[First]> own;
  OfStages<P, Each, First + 1, End> others;

  template <int I>
  KW_FN auto& of(Stage<I>) {
    if constexpr (I == First) {
      return own;
    } else {
      return others.of(Stage<I>{});
    }
  }
};
template <class P, template <Combine> class Each, int End>
struct OfStages<P, Each, End, End> {};

// Vectors of long rows that are taken abreast, at most: two kilobytes of lanes. Each element of
// such a row is in another page of memory, and what lies beside it there is nearly free now, but
// has to be found again later.
template <int V>
inline constexpr int kAbreast = V == 1 ? 1 : 512 / V;

// `count` vectors of V neighbouring rows.
template <class P, int V>
struct LongRows {
  template <Combine C>
  struct Totals {
    TotalOfBlocks<C, V> vectors[kAbreast<V>];
  };
  template <Combine C>
  struct Block {
    Vec<V> sum = identities<C, V>();
  };
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
        for (int64_t e = begin; e < end; ++e) {
          const Cursor at{row + n * V, e};
          Fields f;
          replay<P, R::kFirst, V, V>(f, s[n], a, at);
          for_each_stage_of(reading, [&](auto stage) KW_INLINE {
            constexpr Combine kOp = P::kCombine[decltype(stage)::value];
            accumulate<kOp, V>(block.of(stage).sum, P::contribution(stage, f, s[n], a, at));
          });
        }
        for_each_stage_of(reading, [&](auto stage) KW_INLINE {
          totals.of(stage).vectors[n].add(block.of(stage).sum);
        });
      }
    }
    for_each_stage_of(reading, [&](auto stage) KW_INLINE {
      for (int n = 0; n < count; ++n) {
        P::finish(stage, s[n], totals.of(stage).vectors[n].all(), a);
      }
    });
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
