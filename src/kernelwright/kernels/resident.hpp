// Row programs on the CPU, OpenMP over rows: a row is read once and stays close until it is stored.
//
// Stages over segments run segment by segment, together with the row stage that follows them, so
// that a segment's fields live in registers or in the first-level cache. Only what a later stage or
// a store needs after a reduction over the whole row is kept in a scratch buffer of the row's size.
#pragma once

#include <memory>

#include "chunks.hpp"

namespace kw {

template <class P, class C>
struct ResidentRow {
  static constexpr int V = C::kVec;
  static constexpr int64_t kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int64_t kSegments = P::kElements / kSegment;
  static constexpr int64_t kRun = C::kRun;
  static constexpr int64_t kWide = kSegment / kRun * (kRun / V);
  static constexpr int64_t kSingle = V > 1 ? kSegment - kWide * V : 0;
  using Wide = typename P::template Fields<V>;
  using Single = typename P::template Fields<1>;
  using Scalars = typename P::template Scalars<1>;

  struct Segment {
    Wide wide[kWide + 1];
    Single single[kSingle + 1];
    Scalars scalars;

    template <class F>
    KW_FN void chunks(int64_t begin, F&& body) {
      for_each_chunk<V>(begin, begin + kSegment, kRun,
                        [&](auto lanes, int64_t i, int64_t e) KW_INLINE {
                          if constexpr (decltype(lanes)::value == V) {
                            body(lanes, wide[i], e);
                          } else {
                            body(lanes, single[i], e);
                          }
                        });
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

  std::unique_ptr<Segment[]> scratch{kOnStack ? nullptr
                                              : new Segment[kKeepsSegments ? kSegments : 1]};

  template <class S>
  KW_FN static void accumulate_segment(S stage, Segment& segment, Vec<V>& total,
                                       const typename P::Args& a, Cursor at) {
    constexpr Combine kOp = P::kCombine[S::value];
    segment.chunks(at.element, [&](auto lanes, auto& f, int64_t e) KW_INLINE {
      const auto x = P::contribution(stage, f, segment.scalars, a, Cursor{at.row, e});
      if constexpr (decltype(lanes)::value == V) {
        accumulate<kOp, V>(total, x);
      } else {
        total.lanes[0] = combine<kOp>(total.lanes[0], x.lanes[0]);
      }
    });
  }

  // Stages I up to End, all over this segment.
  template <int I, int End>
  KW_FN static void segment_stages(Segment& segment, const typename P::Args& a, Cursor at) {
    if constexpr (I < End) {
      constexpr Combine kOp = P::kCombine[I];
      Vec<V> total = identities<kOp, V>();
      accumulate_segment(Stage<I>{}, segment, total, a, at);
      P::finish(Stage<I>{}, segment.scalars, Vec<1>{{combine_lanes<kOp, V>(total)}}, a);
      segment_stages<I + 1, End>(segment, a, at);
    }
  }

  // Everything from stage I on; a stage over the row ends one walk over the segments.
  template <int I>
  KW_FN void run_from(const typename P::Args& a, int64_t row) {
    constexpr int kEnd = next_over_row(I);
    constexpr Combine kOp = P::kCombine[kEnd < P::kStages ? kEnd : 0];
    Vec<V> row_total = identities<kOp, V>();
    Scalars last;
    for (int64_t q = 0; q < kSegments; ++q) {
      const Cursor at{row, q * kSegment};
      const auto walk = [&](Segment& segment) KW_INLINE {
        segment_stages<I, kEnd>(segment, a, at);
        if constexpr (kEnd < P::kStages) {
          accumulate_segment(Stage<kEnd>{}, segment, row_total, a, at);
        } else {
          if constexpr (P::kStoresElements) {
            segment.chunks(at.element, [&](auto, auto& f, int64_t e) KW_INLINE {
              P::store_elements(f, segment.scalars, a, Cursor{row, e});
            });
          }
          if constexpr (P::kStoresSegments) P::store_segment(segment.scalars, a, at);
        }
        last = segment.scalars;
      };
      if constexpr (kOnStack) {
        Segment segment;
        walk(segment);
      } else {
        walk(scratch[kKeepsSegments ? q : 0]);
      }
    }
    if constexpr (kEnd < P::kStages) {
      const Vec<1> total{{combine_lanes<kOp, V>(row_total)}};
      P::finish(Stage<kEnd>{}, last, total, a);
      if constexpr (kKeepsSegments) {
        for (int64_t q = 0; q < kSegments; ++q)
          P::finish(Stage<kEnd>{}, scratch[q].scalars, total, a);
        run_from<kEnd + 1>(a, row);
        return;
      }
    }
    P::store_row(last, a, Cursor{row, 0});
  }
};

template <class P, class C>
void resident(const typename P::Args& a, int threads) {
  const int64_t rows = P::rows(a);
#pragma omp parallel num_threads(threads_for<P>(a, threads))
  {
    ResidentRow<P, C> row_program;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) row_program.template run_from<0>(a, row);
  }
}

}  // namespace kw
