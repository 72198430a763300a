// Includes every CPU template and instantiates it, so that a compiler reads all of them as they
// stand. Nothing runs here: tests/cpu/test_templates.py compiles this unit with warnings as errors.
// A new template is one line at the end.
#include "attention.hpp"
#include "check_programs.cuh"
#include "direct.hpp"
#include "dropout.cuh"
#include "pictures.hpp"
#include "pointwise.hpp"
#include "product.hpp"
#include "resident.hpp"
#include "short_rows.hpp"
#include "streaming.hpp"
#include "strided.hpp"
#include "tiled.hpp"

namespace kw::check {

// Sixteen lanes of a row of 72; kRun is the length of a run of neighbours, 0 for the whole row.
struct Lanes {
  static constexpr int kVec = 16;
  static constexpr int kRun = 72;
};

struct SegmentLanes {
  static constexpr int kVec = 6;
  static constexpr int kRun = 6;
};

struct WholeRow {
  static constexpr int kVec = 16;
  static constexpr int kRun = 0;
  static constexpr int kLow = 0;
  static constexpr int kHigh = 0;
};

// Runs of eight rows, of which the first is at the edge.
struct Interior {
  static constexpr int kVec = 4;
  static constexpr int kRun = 8;
  static constexpr int kLow = 1;
  static constexpr int kHigh = 8;
};

struct WholeImages {
  static constexpr int kVec = 16;
  static constexpr int kPhase = 0;
  static constexpr int kAtOnce = 4;
};

struct Turned {
  static constexpr int kVec = 16;
  static constexpr int kRun = 72;
  static constexpr int kAcross = 20;
};

// Scaled scores, and results row by row.
struct ScaledScores {
  struct Args {
    float by;
  };
  template <int V>
  struct Fields {
    Vec<V> product;
  };
  template <int L>
  struct Scalars {};

  template <int V>
  KW_FN static void begin(Fields<V>& f, const Vec<V>& product) {
    f.product = product;
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                   Cursor) {
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v] * a.by;
    return out;
  }

  KW_FN static float weight(float, float sum) { return reciprocal(sum); }
};

struct ResultRows : ScaledScores {
  struct Args {
    float* out;
  };

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, Cursor at) {
    auto out = store_row<V>(a.out + at.row * 20 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v];
    out.commit();
  }
};

struct Heads {
  static constexpr int kVec = 16;
  static constexpr int kRun = 37;
  static constexpr int kOutVec = 16;
  static constexpr int kOutRun = 20;
  static constexpr int kAllKeys = 37;
  static constexpr int kDepth = 24;
  static constexpr int kColumns = 20;
  static constexpr int kBounded = 1;
  static constexpr int kHorizon = 0;
};

}  // namespace kw::check

using namespace kw::check;

template void kw::pointwise<ScaledSigmoid, WholeRow>(const ScaledSigmoid::Args&, int);
template void kw::resident<Softmax, Lanes>(const Softmax::Args&, int);
template void kw::resident<GroupSpread, SegmentLanes>(const GroupSpread::Args&, int);
template void kw::resident<Centred, Lanes>(const Centred::Args&, int);
template void kw::streaming<Softmax, WholeRow>(const Softmax::Args&, int);
template void kw::streaming<Centred, WholeRow>(const Centred::Args&, int);
template void kw::strided<ColumnStatistics, WholeRow>(const ColumnStatistics::Args&, int);
template void kw::strided<PaddedSum, Interior>(const PaddedSum::Args&, int);
template void kw::short_rows<PaddedSum, Interior>(const PaddedSum::Args&, int);
template void kw::pictures<NearlyAll, WholeImages>(const NearlyAll::Args&, int);
template void kw::tiled<ScaledSigmoid, Turned>(const ScaledSigmoid::Args&, int);
template void kw::attend<ScaledScores, ResultRows, Heads>(const AttentionOperands&,
                                                          const ScaledScores::Args&,
                                                          const ResultRows::Args&, int);
