// Windows that begin within one another, and what a thread makes of a box of them: neighbours along
// the last axis, and some below each other on the axes before.
//
// What they see together is a box of places. Each place is read once, into a register, in vectors
// where memory is aligned, and taken as padding where it is outside; a window is made of registers.
// Lines of places (the runs along the last axis) are read when the first tap needs them, so that
// those of earlier taps are gone by then. Where taps have no weights, a line comes down to one
// value for each window beside another, which all windows below each other share.
//
// Padding is multiplied like any other place: zero times a weight adds nothing, unless the weight
// is not finite. Then a total is NaN, and the thread does it again, tap by tap, without padding.
//
// A program P provides, beside what program.cuh says:
//
//   P::kAxes                                       the axes, taps and windows along each
//   P::kBeside                                     the axis along which neighbours in a warp lie
//   P::kDoubts                                     whether padding is multiplied
//   P::kWeighs[I]                                  whether a place counts differently for each tap
//   P::picture(a, at) -> P::Picture                what all places of a picture have in common
//   P::seen<V>(Stage<I>, a, still, at) -> Vec<V>   V places from `at` on of the picture `still`, or
//                                                  padding
//   P::weigh(Stage<I>, seen, scalars, a, at)       the contribution of lanes that see these places
#pragma once

#include <utility>

#include "program.cuh"

namespace kw {

// An axis: so many windows along it, of which a thread takes some, with so many taps each. Windows
// are `step` places apart, taps `spread`.
struct Axis {
  int size;
  int windows;
  int taps;
  int step;
  int spread;

  KW_FN constexpr int all() const { return size; }
  KW_FN constexpr int own() const { return windows; }
  KW_FN constexpr int tiles() const { return (size + windows - 1) / windows; }

  // The first place that the first window sees, and how many places all windows of a thread see.
  KW_FN constexpr int first() const { return spread < 0 ? spread * (taps - 1) : 0; }
  KW_FN constexpr int places() const {
    return (windows - 1) * step + (taps - 1) * (spread < 0 ? -spread : spread) + 1;
  }
  KW_FN constexpr int place(int window, int tap) const {
    return window * step + tap * spread - first();
  }
  KW_FN constexpr bool sees(int place_) const {
    for (int w = 0; w < windows; ++w) {
      for (int t = 0; t < taps; ++t) {
        if (place(w, t) == place_) return true;
      }
    }
    return false;
  }
};

// Where on each axis, within one of the pictures that have nothing in common: so many places `by`
// which the compiler knows `from` one that only the thread does.
template <int N>
struct Spot {
  int64_t picture;
  int from[N];
  int by[N];
};

template <int... I, class F>
KW_FN void each_of(std::integer_sequence<int, I...>, F&& f) {
  (f(Stage<I>{}), ...);
}

// Calls f(Stage<0>{}), f(Stage<1>{}), ... so many times: numbers that are known to the compiler.
template <int N, class F>
KW_FN void each(F&& f) {
  each_of(std::make_integer_sequence<int, N>{}, f);
}

// The product of a number of each of the first axes of a program.
template <class P>
KW_FN constexpr int over_axes(int axes, int (Axis::*number)() const) {
  int all = 1;
  for (int i = 0; i < axes; ++i) all *= (P::kAxes[i].*number)();
  return all;
}

// What is known of a thread's windows when the kernel is compiled. Runs of windows, taps and places
// along the last axis are lines; lines are counted over the axes before.
template <class P>
struct Box {
  static constexpr int kAxes = static_cast<int>(sizeof(P::kAxes) / sizeof(Axis));
  static constexpr Axis kLast = P::kAxes[kAxes - 1];
  static constexpr int kRuns = over_axes<P>(kAxes - 1, &Axis::own);
  static constexpr int kTapLines = P::kElements / kLast.taps;
  static constexpr int kLines = over_axes<P>(kAxes - 1, &Axis::places);
  static constexpr int kRows = over_axes<P>(kAxes, &Axis::all);
  static constexpr int kTiles = over_axes<P>(kAxes, &Axis::tiles);

  // The line of places that a run of windows sees at a line of taps.
  KW_FN static constexpr int line(int run, int taps) {
    int found = 0, scale = 1;
    for (int i = kAxes - 2; i >= 0; --i) {
      const Axis axis = P::kAxes[i];
      found += axis.place(run % axis.windows, taps % axis.taps) * scale;
      scale *= axis.places();
      run /= axis.windows;
      taps /= axis.taps;
    }
    return found;
  }

  // Whether no window has seen that line before, in the order of taps.
  KW_FN static constexpr bool is_new(int run, int taps) {
    const int wanted = line(run, taps);
    for (int i = 0; i < taps * kRuns + run; ++i) {
      if (line(i % kRuns, i / kRuns) == wanted) return false;
    }
    return true;
  }

  // Where a line lies on an axis, from the first one on.
  KW_FN static constexpr int place(int line, int axis) {
    for (int i = kAxes - 2; i > axis; --i) line /= P::kAxes[i].places();
    return line % P::kAxes[axis].places();
  }

  // The axis that threads are counted along at first, second, ...
  KW_FN static constexpr int counted(int turn) {
    if (turn == 0) return P::kBeside;
    return kAxes - turn - (kAxes - turn <= P::kBeside ? 1 : 0);
  }

  // How many rows of the program a window along an axis is from the next.
  KW_FN static constexpr int rows_along(int axis) {
    int rows = 1;
    for (int i = axis + 1; i < kAxes; ++i) rows *= P::kAxes[i].size;
    return rows;
  }

  // How many rows of the program lie between a thread's first window and the first of a run.
  KW_FN static constexpr int rows_to(int run) {
    int found = 0, scale = kLast.size;
    for (int i = kAxes - 2; i >= 0; --i) {
      found += run % P::kAxes[i].windows * scale;
      scale *= P::kAxes[i].size;
      run /= P::kAxes[i].windows;
    }
    return found;
  }

  // Whether any window sees one of the places of a line from one on, up to another.
  KW_FN static constexpr bool sees(int from, int to) {
    for (int i = from; i < to; ++i) {
      if (kLast.sees(i)) return true;
    }
    return false;
  }
};

template <class Number, class P, class C>
struct Windows {
  using B = Box<P>;
  static constexpr int N = B::kAxes;
  static constexpr int V = B::kLast.windows;
  static constexpr int kPlaces = B::kLast.places();

  const typename P::Args& a;
  Number row;      // of the first window
  Spot<N> corner;  // the first place that it sees
  typename P::Picture still;
  typename P::template Scalars<V> s[B::kRuns];
  Vec<V> total[B::kRuns];

  KW_FN Windows(const typename P::Args& args, Number thread) : a(args) {
    row = 0;
    each<N>([&](auto turn) {
      constexpr int i = B::counted(decltype(turn)::value);
      constexpr Axis kAxis = P::kAxes[i];
      constexpr int kMost = kAxis.size - kAxis.windows;
      constexpr Number kTiles = kAxis.tiles(), kRows = B::rows_along(i);
      // The last box begins early enough to be whole: its first windows are its neighbour's too.
      const int wanted = static_cast<int>(thread % kTiles) * kAxis.windows;
      const int first = wanted < kMost ? wanted : kMost;
      corner.from[i] = first * kAxis.step + kAxis.first();
      corner.by[i] = 0;
      row += static_cast<Number>(first) * kRows;
      thread /= kTiles;
    });
    constexpr Number kRows = B::kRows;
    row += thread * kRows;
    corner.picture = static_cast<int64_t>(thread);
    still = P::picture(a, corner);
  }

  template <int kRun>
  KW_FN Cursor at(int element) const {
    constexpr Number kRows = B::rows_to(kRun);
    return {static_cast<int64_t>(static_cast<Number>(row + kRows)), element};
  }

  // Reads the places of a line from kFrom on that windows see: W of them lie in one vector.
  template <int I, int kLine, int W, int kFrom>
  KW_FN void read(float (&line)[kPlaces]) const {
    constexpr int kHalf = W / 2;
    constexpr bool kLow = B::sees(kFrom, kFrom + (W > 1 ? kHalf : 1));
    constexpr bool kHigh = W > 1 && B::sees(kFrom + kHalf, kFrom + W);
    if constexpr (kLow && (W == 1 || kHigh)) {
      Spot<N> spot = corner;
      each<N - 1>([&](auto axis) {
        constexpr int kAxis = decltype(axis)::value;
        spot.by[kAxis] = B::place(kLine, kAxis);
      });
      spot.by[N - 1] = kFrom;
      const Vec<W> seen = P::template seen<W>(Stage<I>{}, a, still, spot);
      KW_LANES
      for (int w = 0; w < W; ++w) {
        if (kFrom + w >= 0 && kFrom + w < kPlaces) line[kFrom + w] = seen[w];
      }
    } else if constexpr (kLow) {
      read<I, kLine, kHalf, kFrom>(line);
    } else if constexpr (kHigh) {
      read<I, kLine, kHalf, kFrom + kHalf>(line);
    }
  }

  template <int I, int kLine>
  KW_FN void read_line(float (&line)[kPlaces]) const {
    constexpr int kVectors = (C::kPhase + kPlaces + C::kVec - 1) / C::kVec;
    each<kVectors>([&](auto vector) {
      read<I, kLine, C::kVec, decltype(vector)::value * C::kVec - C::kPhase>(line);
    });
  }

  template <int I>
  KW_FN void add(int run, const Vec<V>& x) {
    total[run] = combined<P::kCombine[I]>(total[run], x);
  }

  // One line of taps: what is new to all windows, then the taps one by one.
  template <int I, int kTaps>
  KW_FN void weigh_line(float (&lines)[B::kLines][kPlaces]) {
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
      constexpr int kLine = B::line(kRun, kTaps);
      if constexpr (B::is_new(kRun, kTaps)) read_line<I, kLine>(lines[kLine]);
    });
    each<B::kLast.taps>([&](auto tap) {
      constexpr int kTap = decltype(tap)::value;
      each<B::kRuns>([&](auto run) {
        constexpr int kRun = decltype(run)::value;
        constexpr int kLine = B::line(kRun, kTaps);
        constexpr int kElement = kTaps * B::kLast.taps + kTap;
        const Vec<V> seen = under<kTap>(lines[kLine]);
        add<I>(kRun, P::weigh(Stage<I>{}, seen, s[kRun], a, at<0>(kElement)));
      });
    });
  }

  // The places of a line that a run of windows sees under a tap.
  template <int kTap>
  KW_FN static Vec<V> under(const float (&line)[kPlaces]) {
    constexpr Axis kLast = B::kLast;
    Vec<V> seen;
    KW_LANES
    for (int v = 0; v < V; ++v) seen[v] = line[kLast.place(v, kTap)];
    return seen;
  }

  // The same without weights: what each line comes down to.
  template <int I, int kTaps>
  KW_FN void add_line(Vec<V> (&lines)[B::kLines]) {
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
      constexpr int kLine = B::line(kRun, kTaps);
      if constexpr (B::is_new(kRun, kTaps)) {
        float line[kPlaces];
        read_line<I, kLine>(line);
        lines[kLine] = under<0>(line);
        each<B::kLast.taps - 1>([&](auto tap) {
          const Vec<V> seen = under<decltype(tap)::value + 1>(line);
          lines[kLine] = combined<P::kCombine[I]>(lines[kLine], seen);
        });
      }
    });
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
      add<I>(kRun, lines[B::line(kRun, kTaps)]);
    });
  }

  KW_FN bool in_doubt() const {
    bool found = false;
    each<B::kRuns>([&](auto run) {
      KW_LANES
      for (int v = 0; v < V; ++v) {
        const float x = total[decltype(run)::value][v];
        found = found || x != x;
      }
    });
    return found;
  }

  template <Combine kOp>
  KW_FN void begin() {
    each<B::kRuns>([&](auto run) { total[decltype(run)::value] = everywhere<V>(identity<kOp>()); });
  }

  // Tap by tap, each under its own conditions.
  template <int I>
  KW_FN void take_slowly() {
    begin<P::kCombine[I]>();
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
      for (int e = 0; e < P::kElements; ++e) {
        typename P::template Fields<V> f;
        replay<P, I, V, V>(f, s[kRun], a, at<kRun>(e));
        add<I>(kRun, P::contribution(Stage<I>{}, f, s[kRun], a, at<kRun>(e)));
      }
    });
  }

  template <int I>
  KW_FN void take() {
    begin<P::kCombine[I]>();
    if constexpr (P::kWeighs[I]) {
      float lines[B::kLines][kPlaces];
      each<B::kTapLines>([&](auto taps) { weigh_line<I, decltype(taps)::value>(lines); });
    } else {
      Vec<V> lines[B::kLines];
      each<B::kTapLines>([&](auto taps) { add_line<I, decltype(taps)::value>(lines); });
    }
    if constexpr (P::kDoubts) {
      if (in_doubt()) take_slowly<I>();
    }
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
      P::finish(Stage<I>{}, s[kRun], total[kRun], a);
    });
  }

  KW_FN void run() {
    each<P::kStages>([&](auto stage) { take<decltype(stage)::value>(); });
    each<B::kRuns>([&](auto run) {
      constexpr int kRun = decltype(run)::value;
      P::store_row(s[kRun], a, at<kRun>(0));
    });
  }
};

}  // namespace kw
