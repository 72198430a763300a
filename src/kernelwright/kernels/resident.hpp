// Row programs on the CPU, OpenMP over rows: a row is read once and stays close until it is stored.
//
// Stages over segments run segment by segment, together with the row stage that follows them, so
// that a segment's fields live in registers or in the first-level cache. Only what a later stage or
// a store needs after a reduction over the whole row is kept in a scratch buffer of the row's size.
#pragma once

#include "chunks.hpp"

namespace kw {

template <class P, class C>
struct ResidentRow {
  static constexpr int V = C::kVec;
  static constexpr int64_t kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int64_t kSegments = P::kElements / kSegment;
  static constexpr int64_t kRun = C::kRun;
  static constexpr int64_t kRuns = kSegment / kRun;
  static constexpr int64_t kWide = kRuns * (kRun / V);
  static constexpr int64_t kNarrows = V > kNarrow ? kRuns * (kRun % V / kNarrow) : 0;
  static constexpr int64_t kSingle = kSegment - kWide * V - kNarrows * kNarrow;
  using Wide = typename P::template Fields<V>;
  using Narrow = typename P::template Fields<kNarrow>;
  using Single = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  // On lines of the cache, which a vector would otherwise straddle.
  struct alignas(64) Segment {
    Wide wide[kWide + 1];
    Narrow narrow[kNarrows + 1];
    Single single[kSingle + 1];
    Scalars scalars;

    template <class F, class Four = std::nullptr_t>
    KW_FN void chunks(int64_t begin, F&& body, Four&& four = {}) {
      const auto each = [&](auto lanes, int64_t i, int64_t e) KW_INLINE {
        if constexpr (decltype(lanes)::value == V) {
          body(lanes, wide[i], e);
        } else if constexpr (decltype(lanes)::value == kNarrow) {
          body(lanes, narrow[i], e);
        } else {
          body(lanes, single[i], e);
        }
      };
      for_each_chunk<V, kRun>(begin, begin + kSegment, kRun, each, four);
    }
  };

  // Without segments the row is the only one, and every stage is over it.
  static constexpr bool over_row(int stage) { return P::kSegment && !P::kOverSegment[stage]; }
  static constexpr int next_over_row(int stage) {
    while (stage < P::kStages && !over_row(stage)) ++stage;
    return stage;
  }
  static constexpr int kFirstOverRow = next_over_row(0);
  static constexpr bool kKeepsSegments =
      kFirstOverRow < P::kStages &&
      (kFirstOverRow + 1 < P::kStages || P::kStoresElements || P::kStoresSegments);
  static constexpr bool kOnStack = !kKeepsSegments && sizeof(Segment) <= 16384;
  static constexpr int kTogether = sizeof(Segment) <= 1024 ? 4 : 1;

  // No unique_ptr: <memory> takes the compiler as long as a kernel.
  Segment* const scratch = kOnStack ? nullptr : new Segment[kKeepsSegments ? kSegments : 1];
  ResidentRow() = default;
  ResidentRow(const ResidentRow&) = delete;
  ~ResidentRow() { delete[] scratch; }

  template <class S>
  KW_FN static void accumulate_segment(S stage, Segment& segment,
                                       Vec<V, TotalOf<P, S::value>>& total,
                                       const typename P::Args& a, Cursor at) {
    constexpr Combine kOp = P::kCombine[S::value];
    // A copy, since the fields are written meanwhile: in the same object as these, the compiler
    // would read them again for every lane, and not vectorise.
    const Scalars scalars = segment.scalars;
    StageTotal<P, S::value, V> sum;
    const auto add = [&](auto lanes, auto& f, int64_t e) KW_INLINE {
      const auto x = P::contribution(stage, f, scalars, a, Cursor{at.row, e});
      if constexpr (decltype(lanes)::value == V) {
        sum.add(x);
      } else {
        sum.add_some(x);
      }
    };
    if constexpr (kIsCentre<P, S::value>) {
      segment.chunks(at.element, add, [&](int64_t i, int64_t e) KW_INLINE {
        Vec<V> x[4];
        for (int n = 0; n < 4; ++n) {
          const Cursor here{at.row, e + n * V};
          x[n] = P::contribution(stage, segment.wide[i + n], scalars, a, here);
        }
        sum.add(x);
      });
    } else {
      segment.chunks(at.element, add);
    }
    accumulate<kOp, V>(total, sum.all());
  }

  // Stages I up to End for N segments side by side: the long chains of one (a sum across lanes, a
  // square root, a division) run while the processor works on the others.
  template <int I, int End, int N>
  KW_FN static void segment_stages(Segment* segments, const typename P::Args& a,
                                   const Cursor (&at)[N]) {
    if constexpr (I < End) {
      constexpr Combine kOp = P::kCombine[I];
      using T = TotalOf<P, I>;
      Vec<V, T> totals[N];
      for (int k = 0; k < N; ++k) {
        totals[k] = identities<kOp, V, T>();
        accumulate_segment(Stage<I>{}, segments[k], totals[k], a, at[k]);
      }
      for (int k = 0; k < N; ++k) {
        const Vec<1, T> total{{combine_lanes<kOp>(totals[k])}};
        P::finish(Stage<I>{}, segments[k].scalars, total, a);
      }
      segment_stages<I + 1, End, N>(segments, a, at);
    }
  }

  KW_FN static void store_segment(Segment& segment, const typename P::Args& a, Cursor at) {
    if constexpr (P::kStoresElements) {
      const Scalars scalars = segment.scalars;
      segment.chunks(at.element, [&](auto, auto& f, int64_t e) KW_INLINE {
        P::store_elements(f, scalars, a, Cursor{at.row, e});
      });
    }
    if constexpr (P::kStoresSegments) P::store_segment(segment.scalars, a, at);
  }

  // N rows without segments that are so short that they stay on the stack.
  template <int N>
  KW_FN static void run_short(const typename P::Args& a, int64_t row) {
    Segment segments[N];
    Cursor at[N];
    for (int k = 0; k < N; ++k) at[k] = {row + k, 0};
    segment_stages<0, P::kStages, N>(segments, a, at);
    for (int k = 0; k < N; ++k) {
      store_segment(segments[k], a, at[k]);
      P::store_row(segments[k].scalars, a, at[k]);
    }
  }

  // Stages I up to the next one over the row for N segments from q on, and their share of that one.
  template <int I, int N, class T>
  KW_FN void walk(Segment* segments, Vec<V, T>& row_total, const typename P::Args& a, int64_t row,
                  int64_t q) {
    constexpr int kEnd = next_over_row(I);
    Cursor at[N];
    for (int k = 0; k < N; ++k) at[k] = {row, (q + k) * kSegment};
    segment_stages<I, kEnd, N>(segments, a, at);
    for (int k = 0; k < N; ++k) {
      if constexpr (kEnd < P::kStages) {
        accumulate_segment(Stage<kEnd>{}, segments[k], row_total, a, at[k]);
      } else {
        store_segment(segments[k], a, at[k]);
      }
    }
  }

  // Everything from stage I on; a stage over the row ends one walk over the segments.
  template <int I>
  KW_FN void run_from(const typename P::Args& a, int64_t row) {
    constexpr int kEnd = next_over_row(I);
    constexpr int kNext = kEnd < P::kStages ? kEnd : 0;
    constexpr Combine kOp = P::kCombine[kNext];
    using T = TotalOf<P, kNext>;
    Vec<V, T> row_total = identities<kOp, V, T>();
    Scalars last;
    int64_t q = 0;
    if constexpr (kOnStack) {
      for (; q + kTogether <= kSegments; q += kTogether) {
        Segment segments[kTogether];
        walk<I, kTogether>(segments, row_total, a, row, q);
        last = segments[0].scalars;
      }
    }
    for (; q < kSegments; ++q) {
      if constexpr (kOnStack) {
        Segment alone;
        walk<I, 1>(&alone, row_total, a, row, q);
        last = alone.scalars;
      } else {
        Segment& kept = scratch[kKeepsSegments ? q : 0];
        walk<I, 1>(&kept, row_total, a, row, q);
        last = kept.scalars;
      }
    }
    if constexpr (kEnd < P::kStages) {
      const Vec<1, T> total{{combine_lanes<kOp>(row_total)}};
      P::finish(Stage<kEnd>{}, last, total, a);
      if constexpr (kKeepsSegments) {
        for (int64_t k = 0; k < kSegments; ++k) {
          P::finish(Stage<kEnd>{}, scratch[k].scalars, total, a);
        }
        run_from<kEnd + 1>(a, row);
        return;
      }
    }
    P::store_row(last, a, Cursor{row, 0});
  }
};

template <class P, class C>
void resident(const typename P::Args& a, int threads) {
  using Row = ResidentRow<P, C>;
  const int64_t rows = P::rows(a);
  if constexpr (Row::kSegments == 1 && Row::kOnStack) {
    constexpr int N = Row::kTogether;
    const int64_t together = rows / N;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
    for (int64_t i = 0; i < together; ++i) Row::template run_short<N>(a, i * N);
    for (int64_t row = together * N; row < rows; ++row) Row::template run_short<1>(a, row);
  } else {
#pragma omp parallel num_threads(threads_for<P>(a, threads))
    {
      Row row_program;
#pragma omp for schedule(static)
      for (int64_t row = 0; row < rows; ++row) row_program.template run_from<0>(a, row);
    }
  }
}

}  // namespace kw
