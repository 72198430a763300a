// What a row program looks like to a kernel.
//
// A program works on rows of elements. Its stages are reductions, in order: stage I combines one
// contribution per element over the row, or over each segment (a run of neighbouring elements) of
// it. Then it stores. A generated program P provides, for V lanes of one chunk and L lanes of
// results:
//
//   P::Args                                        pointers and sizes
//   P::rows(a), P::elements(a), P::kSegment        the loop nest; kSegment 0: no segments
//   P::kStages, P::kCombine[I], P::kOverSegment[I]
//   P::kSameReading[I]                             whether stage I needs nothing of the stages that
//                                                  read the row last; if left out, each needs it
//   P::kCentre[I]                                  whether stage I is a sum whose mean is taken
//                                                  from the elements; if left out, none is
//   P::Fields<V>                                   what a chunk remembers from stage to stage
//   P::Scalars<L>                                  results of stages and what follows from them
//   P::contribution(Stage<I>, fields, scalars, a, at) -> Vec<V>
//   P::finish(Stage<I>, scalars, total, a)
//   P::store_elements(fields, scalars, a, at), P::store_segment(scalars, a, at), P::store_row(...)
//   P::kStoresElements, P::kStoresSegments         whether the first two do anything
#pragma once

#include <type_traits>

#include "storage.cuh"

namespace kw {

template <int I>
struct Stage {
  static constexpr int value = I;
};

struct Cursor {
  int64_t row;
  int64_t element;
};

enum class Combine { kSum, kProd, kMax, kMin };

// A sum whose mean is subtracted is a double. What is left of equal numbers is divided by nearly
// nothing, so it has to be nothing, and the mean that number to the last bit: n times a float fits
// into a double, and a float is what an n-th of it is rounded to.
template <class P, int I, class = void>
inline constexpr bool kIsCentre = false;
template <class P, int I>
inline constexpr bool kIsCentre<P, I, std::void_t<decltype(P::kCentre)>> = P::kCentre[I];

template <class P, int I>
using TotalOf = std::conditional_t<kIsCentre<P, I>, double, float>;

// For a total of any stage.
template <class P, int I = 0>
constexpr bool any_centre() {
  if constexpr (I < P::kStages) {
    return kIsCentre<P, I> || any_centre<P, I + 1>();
  } else {
    return false;
  }
}
template <class P>
using AnyTotalOf = std::conditional_t<any_centre<P>(), double, float>;

template <Combine C, class T = float>
KW_FN T identity() {
  if constexpr (C == Combine::kSum) return T(0);
  if constexpr (C == Combine::kProd) return T(1);
  if constexpr (C == Combine::kMax) return -detail::kInf;
  if constexpr (C == Combine::kMin) return detail::kInf;
}

template <Combine C, class T>
KW_FN T combine(T x, T y) {
  if constexpr (C == Combine::kSum) return x + y;
  if constexpr (C == Combine::kProd) return x * y;
  if constexpr (C == Combine::kMax) return maximum(static_cast<float>(x), static_cast<float>(y));
  if constexpr (C == Combine::kMin) return minimum(static_cast<float>(x), static_cast<float>(y));
}

// V lanes of one number.
template <int V, class T>
KW_FN void fill(Vec<V, T>& out, T x) {
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = x;
}

template <int V, class T>
KW_FN Vec<V, T> everywhere(T x) {
  Vec<V, T> out;
  fill(out, x);
  return out;
}

template <Combine C, int V, class T>
KW_FN Vec<V, T> combined(const Vec<V, T>& x, const Vec<V, T>& y) {
  Vec<V, T> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out[v] = combine<C>(x[v], y[v]);
  return out;
}

template <class T, int V>
KW_FN Vec<V, T> as_totals(const Vec<V>& x) {
  Vec<V, T> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out[v] = x[v];
  return out;
}

// Whether a program leaves before it loads where nothing is to be loaded: padding. On the GPU it
// loads something else instead, so that nobody waits for one load before the next is made.
#ifdef __CUDACC__
constexpr bool kSkips = false;
#else
constexpr bool kSkips = true;
#endif

// Folds the upper half of the lanes onto the lower one until a single lane is left: a short chain
// of widths known to the compiler, which keeps it in vector registers.
template <Combine C, int Width, int V, class T>
KW_FN T fold_lanes(Vec<V, T>& x) {
  if constexpr (Width == 1) {
    return x.lanes[0];
  } else {
    constexpr int kHalf = Width / 2;
    KW_LANES
    for (int v = 0; v < kHalf; ++v) x.lanes[v] = combine<C>(x.lanes[v], x.lanes[Width - kHalf + v]);
    return fold_lanes<C, Width - kHalf>(x);
  }
}

template <Combine C, int V, class T>
KW_FN T combine_lanes(Vec<V, T> x) {
  return fold_lanes<C, V>(x);
}

// Numbers folded to one, and that as a total. As many as a power of two, and equal, are summed
// exactly as floats; if only `some` count (the others are identities), doubles are.
template <Combine C, class T, int V>
KW_FN T fold_to_total(const Vec<V>& x, bool some = false) {
  if (sizeof(T) > sizeof(float) && some) return combine_lanes<C>(as_totals<T>(x));
  return combine_lanes<C>(x);
}

// Calls f(Stage<0>{}), f(Stage<1>{}), ... for every stage of a program.
template <class P, int I = 0, class F>
KW_FN void for_each_stage(F&& f) {
  if constexpr (I < P::kStages) {
    f(Stage<I>{});
    for_each_stage<P, I + 1>(f);
  }
}

// The stages that share a reading of the row, since they need nothing of each other: [First, End).
// On the GPU, and where rows lie side by side: along a row a CPU finds it in its cache again, and
// runs out of registers sooner.
template <int First, int End>
struct Reading {
  static constexpr int kFirst = First;
  static constexpr int kEnd = End;
};

template <class P, class = void>
struct SameReading {
  KW_FN static constexpr bool at(int) { return false; }
};
template <class P>
struct SameReading<P, std::void_t<decltype(P::kSameReading)>> {
  KW_FN static constexpr bool at(int stage) { return P::kSameReading[stage]; }
};

template <class P>
KW_FN constexpr int end_of_reading(int first) {
  int end = first + 1;
  while (end < P::kStages && SameReading<P>::at(end)) ++end;
  return end;
}

// Calls f(Reading<..>{}) for every reading of a program.
template <class P, int I = 0, class F>
KW_FN void for_each_reading(F&& f) {
  if constexpr (I < P::kStages) {
    constexpr int kEnd = end_of_reading<P>(I);
    f(Reading<I, kEnd>{});
    for_each_reading<P, kEnd>(f);
  }
}

// Calls f(Stage<..>{}) for every stage of a reading.
template <int First, int End, class F>
KW_FN void for_each_stage_of(Reading<First, End>, F&& f) {
  if constexpr (First < End) {
    f(Stage<First>{});
    for_each_stage_of(Reading<First + 1, End>{}, f);
  }
}

// One value for each stage [First, End) of a reading: of(stage) is an Each<P, I>.
template <class P, template <class, int> class Each, int First, int End>
struct OfStages {
  Each<P, First> own;
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
template <class P, template <class, int> class Each, int End>
struct OfStages<P, Each, End, End> {};

// For each of them, what N elements contribute.
template <int N, int V>
struct Several {
  template <class, int>
  struct Of {
    Vec<V> x[N];
  };
};

// Brings a chunk's fields to where stage I finds them, by going through the stages before it again.
// Only kernels that do not keep a row resident need it; what stage I does not use is optimised
// away.
template <class P, int I, int V, int L>
KW_FN void replay(typename P::template Fields<V>& f, const typename P::template Scalars<L>& s,
                  const typename P::Args& a, Cursor at) {
  if constexpr (I > 0) {
    replay<P, I - 1, V, L>(f, s, a, at);
    P::contribution(Stage<I - 1>{}, f, s, a, at);
  }
}

}  // namespace kw
