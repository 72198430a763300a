// Row programs on the CPU, OpenMP over rows: what a row remembers stays in a scratch buffer in the cache.
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

  std::unique_ptr<Wide[]> wide{new Wide[kSegments * kWide + 1]};
  std::unique_ptr<Single[]> single{new Single[kSegments * kSingle + 1]};
  std::unique_ptr<Scalars[]> scalars{new Scalars[kSegments]};

  template <class F>
  KW_FN void chunks(int64_t q, F&& body) {
    for_each_chunk<V>(q * kSegment, (q + 1) * kSegment, kRun, [&](auto lanes, int64_t i, int64_t e) {
      if constexpr (decltype(lanes)::value == V) {
        body(lanes, wide[q * kWide + i], e);
      } else {
        body(lanes, single[q * kSingle + i], e);
      }
    });
  }

  void run(const typename P::Args& a, int64_t row) {
    for_each_stage<P>([&](auto stage) {
      constexpr int I = decltype(stage)::value;
      constexpr Combine kOp = P::kCombine[I];
      Vec<V> row_total = identities<kOp, V>();
      for (int64_t q = 0; q < kSegments; ++q) {
        Scalars& s = scalars[q];
        Vec<V> fresh = identities<kOp, V>();
        Vec<V>& total = P::kOverSegment[I] ? fresh : row_total;
        chunks(q, [&](auto lanes, auto& f, int64_t e) {
          const auto x = P::contribution(stage, f, s, a, Cursor{row, e});
          if constexpr (decltype(lanes)::value == V) {
            accumulate<kOp, V>(total, x);
          } else {
            total.lanes[0] = combine<kOp>(total.lanes[0], x.lanes[0]);
          }
        });
        if constexpr (P::kOverSegment[I]) {
          P::finish(stage, s, Vec<1>{{combine_lanes<kOp, V>(total)}}, a);
        }
      }
      if constexpr (!P::kOverSegment[I]) {
        const Vec<1> total{{combine_lanes<kOp, V>(row_total)}};
        for (int64_t q = 0; q < kSegments; ++q) P::finish(stage, scalars[q], total, a);
      }
    });
    for (int64_t q = 0; q < kSegments; ++q) {
      Scalars& s = scalars[q];
      if constexpr (P::kStoresElements) {
        chunks(q, [&](auto, auto& f, int64_t e) { P::store_elements(f, s, a, Cursor{row, e}); });
      }
      P::store_segment(s, a, Cursor{row, q * kSegment});
    }
    P::store_row(scalars[0], a, Cursor{row, 0});
  }
};

template <class P, class C>
void resident(const typename P::Args& a, int threads) {
  const int64_t rows = P::rows(a);
#pragma omp parallel num_threads(threads) if (rows > 0)
  {
    ResidentRow<P, C> row_program;
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) row_program.run(a, row);
  }
}

}  // namespace kw
