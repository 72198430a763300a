// Walking a row on the CPU: chunks of V lanes that the compiler vectorises, then of four, then
// single lanes.
//
// Sums are kept per lane and combined at the end, which is also what makes them accurate.
#pragma once

#include <algorithm>
#include <type_traits>

#include "program.cuh"

// GCC leaves lambdas out of line when they are large; their captures then live in memory.
#define KW_INLINE __attribute__((always_inline))

namespace kw {

template <Combine C, int V, class T, class X>
KW_FN void accumulate(Vec<V, T>& total, const Vec<V, X>& x) {
  KW_LANES
  for (int v = 0; v < V; ++v) total.lanes[v] = combine<C>(total.lanes[v], T{x.lanes[v]});
}

template <Combine C, int V, class T = float>
KW_FN Vec<V, T> identities() {
  Vec<V, T> x;
  for (int v = 0; v < V; ++v) x.lanes[v] = identity<C, T>();
  return x;
}

// A total over a long row: blocks of so many chunks, so many blocks together, and these. A row of
// equal numbers is rounded the same way at every step, and a norm divides by nearly nothing then;
// so the steps from an element to the total have to be few.
template <Combine C, int V>
struct BlockwiseTotal {
  static constexpr int kBlock = 16;
  Vec<V> done = identities<C, V>();
  Vec<V> blocks = identities<C, V>();
  Vec<V> block = identities<C, V>();
  Vec<V> rest = identities<C, V>();
  int chunks = 0;
  int singles = 0;

  KW_FN void add(const Vec<V>& x) {
    accumulate<C, V>(block, x);
    if (++chunks % kBlock == 0) {
      accumulate<C, V>(blocks, block);
      block = identities<C, V>();
      if (chunks == kBlock * kBlock) {
        accumulate<C, V>(done, blocks);
        blocks = identities<C, V>();
        chunks = 0;
      }
    }
  }

  // What a run leaves over comes again with every run: added up one by one, it would take as many
  // steps as there are runs.
  template <int W>
  KW_FN void add_some(const Vec<W>& x) {
    for (int v = 0; v < W; ++v) {
      rest.lanes[singles] = x.lanes[v];
      if (++singles == V) {
        add(rest);
        rest = identities<C, V>();
        singles = 0;
      }
    }
  }

  KW_FN Vec<V> all() const {
    Vec<V> total = done;
    accumulate<C, V>(total, blocks);
    accumulate<C, V>(total, block);
    accumulate<C, V>(total, rest);
    return total;
  }
};

// A sum as a double, which steps do not wear out.
template <int V>
struct WideTotal {
  Vec<V, double> total = identities<Combine::kSum, V, double>();

  KW_FN void add(const Vec<V>& x) { accumulate<Combine::kSum, V>(total, x); }
  KW_FN void add(const Vec<V> (&x)[1]) { add(x[0]); }

  // First as floats, which is exact if they are equal.
  KW_FN void add(const Vec<V> (&x)[4]) {
    Vec<V> sum;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      sum.lanes[v] = (x[0].lanes[v] + x[1].lanes[v]) + (x[2].lanes[v] + x[3].lanes[v]);
    }
    add(sum);
  }

  template <int W>
  KW_FN void add_some(const Vec<W>& x) {
    for (int v = 0; v < W; ++v) total.lanes[v] += x.lanes[v];
  }

  KW_FN const Vec<V, double>& all() const { return total; }
};

// What adds up the chunks of stage I.
template <class P, int I, int V>
using StageTotal =
    std::conditional_t<kIsCentre<P, I>, WideTotal<V>, BlockwiseTotal<P::kCombine[I], V>>;

// Threads for a program: waking others costs more than a few thousand elements of work.
template <class P>
KW_FN int threads_for(const typename P::Args& a, int threads) {
  return P::rows(a) * P::elements(a) < 32768 ? 1 : threads;
}

// Lanes of the narrow chunks that are left of a run: a function of few lanes costs a processor as
// much as one of many.
inline constexpr int kNarrow = 4;

// Of a run of R elements, 0 where that is not known: whether chunks of W lanes may leave any.
template <int64_t R, int W>
inline constexpr bool kLeaves = R == 0 || R % W != 0;

// Calls body(lanes, index, element) over [begin, end): chunks of V lanes along runs, then narrow
// ones, then single lanes. `index` counts the chunks of each width on their own. All runs have R
// elements if that is not 0. Where four chunks of V lanes follow one another, four(index, element)
// takes them, if it is given.
template <int V, int64_t R, class F, class Four = std::nullptr_t>
KW_FN void for_each_chunk(int64_t begin, int64_t end, int64_t run, F&& body, Four&& four = {}) {
  int64_t wide = 0;
  int64_t narrow = 0;
  int64_t single = 0;
  for (int64_t start = begin; start < end; start += run) {
    int64_t e = start;
    const int64_t stop = std::min(start + run, end);
    if constexpr (!std::is_same_v<std::decay_t<Four>, std::nullptr_t>) {
      for (; e + 4 * V <= stop; e += 4 * V, wide += 4) four(wide, e);
    }
    for (; e + V <= stop; e += V) body(Stage<V>{}, wide++, e);
    if constexpr (V > kNarrow && kLeaves<R, V>) {
      for (; e + kNarrow <= stop; e += kNarrow) body(Stage<kNarrow>{}, narrow++, e);
    }
    if constexpr (V > 1 && kLeaves<R, V> && (V <= kNarrow || kLeaves<R, kNarrow>)) {
      for (; e < stop; ++e) body(Stage<1>{}, single++, e);
    }
  }
}

}  // namespace kw
