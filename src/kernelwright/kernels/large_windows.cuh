// A few large windows of every picture, which share most of it: what each tap of a convolution
// reads over all places of the result, say. All of them are made in one walk through the picture.
//
// A walker has a vector of places along the last axis, a column of the picture, and goes down some
// of its lines (the runs of places along that axis). Lines that all windows see, most of them, are
// combined once; any other one with what each window that sees it has of the column, a vector for
// each window over the axes before the last. At the end of the column the windows along the last
// axis take from it the places that they see.
//
// A program is one for boxes.cuh, with a single stage that weighs nothing; its kAxes say that all
// windows are taken together.
#pragma once

#include "boxes.cuh"

namespace kw {

template <class P, class C>
struct LargeWindows {
  static_assert(P::kStages == 1 && !P::kWeighs[0], "places count alike, and once");
  static constexpr Combine kOp = P::kCombine[0];
  static constexpr int N = Box<P>::kAxes;
  static constexpr int V = C::kVec;
  static constexpr Axis kLast = P::kAxes[N - 1];
  static constexpr int kWindows = over_axes<P>(N, &Axis::all);
  static constexpr int kOver = kWindows / kLast.size;
  static constexpr int kLines = over_axes<P>(N - 1, &Axis::places);
  static constexpr int kColumns = (C::kPhase + kLast.places() + V - 1) / V;
  static constexpr int kAtOnce = C::kAtOnce;  // lines that are on their way together

  const typename P::Args& a;
  const int64_t picture;
  typename P::Picture still;
  float total[kWindows];

  KW_FN LargeWindows(const typename P::Args& args, int64_t number) : a(args), picture(number) {
    still = P::picture(a, spot(0, 0));
    KW_LANES
    for (int w = 0; w < kWindows; ++w) total[w] = identity<kOp>();
  }

  // The first place of a column in a line.
  KW_FN Spot<N> spot(int line, int column) const {
    Spot<N> found{picture, {}, {}};
    found.from[N - 1] = column * V - C::kPhase;
    each<N - 1>([&](auto turn) {
      constexpr int i = N - 2 - decltype(turn)::value;
      constexpr int kPlaces = P::kAxes[i].places();
      found.from[i] = i > 0 ? line % kPlaces : line;
      line /= kPlaces;
    });
    return found;
  }

  // Whether a window along an axis sees a place; none sees one behind the end.
  KW_FN static bool sees(Axis axis, int window, int place) {
    return static_cast<unsigned>(place - window * axis.step) < static_cast<unsigned>(axis.taps);
  }

  // Goes down the lines from `first` on, up to `end`, and adds what windows see of the column.
  KW_FN void take(int column, int first, int end, int step) {
    Vec<V> shared = everywhere<V>(identity<kOp>());
    Vec<V> sums[kOver];
    each<kOver>([&](auto over) { sums[decltype(over)::value] = everywhere<V>(identity<kOp>()); });
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int start = first; start < end; start += kAtOnce * step) {
      Vec<V> seen[kAtOnce];
      each<kAtOnce>([&](auto n) {
        const int line = start + decltype(n)::value * step;
        const Spot<N> at = spot(line < end ? line : start, column);
        seen[decltype(n)::value] = P::template seen<V>(Stage<0>{}, a, still, at);
      });
      each<kAtOnce>([&](auto n) {
        const int line = start + decltype(n)::value * step;
        if (line < end) add(shared, sums, seen[decltype(n)::value], spot(line, column));
      });
    }
    each<kOver>([&](auto over) {
      constexpr int kOwn = decltype(over)::value;
      fold(kOwn, combined<kOp>(shared, sums[kOwn]), column);
    });
  }

  KW_FN void add(Vec<V>& shared, Vec<V> (&sums)[kOver], const Vec<V>& seen,
                 const Spot<N>& at) const {
    bool by_all = true;
    each<N - 1>([&](auto i) {
      constexpr Axis kAxis = P::kAxes[decltype(i)::value];
      constexpr int kReach = (kAxis.size - 1) * kAxis.step;  // of the last window beyond the first
      constexpr auto kCore = static_cast<unsigned>(kAxis.taps > kReach ? kAxis.taps - kReach : 0);
      by_all = by_all && static_cast<unsigned>(at.from[decltype(i)::value] - kReach) < kCore;
    });
    if (by_all) {
      shared = combined<kOp>(shared, seen);
      return;
    }
    each<kOver>([&](auto over) {
      int rest = decltype(over)::value;
      bool inside = true;
      each<N - 1>([&](auto turn) {
        constexpr int i = N - 2 - decltype(turn)::value;
        constexpr Axis kAxis = P::kAxes[i];
        inside = inside && sees(kAxis, rest % kAxis.size, at.from[i]);
        rest /= kAxis.size;
      });
      Vec<V>& sum = sums[decltype(over)::value];
      if (inside) sum = combined<kOp>(sum, seen);
    });
  }

  KW_FN void fold(int over, const Vec<V>& sum, int column) {
    each<kLast.size>([&](auto window) {
      constexpr int w = decltype(window)::value;
      constexpr Axis kAxis = kLast;
      Vec<V> own;
      KW_LANES
      for (int v = 0; v < V; ++v) {
        const bool inside = sees(kAxis, w, column * V - C::kPhase + v);
        own[v] = inside ? sum[v] : identity<kOp>();
      }
      float& all = total[over * kLast.size + w];
      all = combine<kOp>(all, combine_lanes<kOp>(own));
    });
  }

  KW_FN void store(int window, float all) const {
    typename P::template Scalars<1> s;
    P::finish(Stage<0>{}, s, Vec<1>{{all}}, a);
    P::store_row(s, a, Cursor{picture * kWindows + window, 0});
  }
};

}  // namespace kw
