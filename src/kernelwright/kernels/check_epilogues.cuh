// Three programs for the epilogue of a product, written by hand to the contract in epilogue.cuh,
// for check.cu. As row programs (in_memory.cuh) they have 1024 rows.
#pragma once

#include <cuda_runtime.h>

#include "epilogue.cuh"

namespace kw {
namespace check {

// GroupNorm without weights over groups of 16 of 8192 columns, then the smallest of each row.
struct GroupMinimum {
  struct Args {
    float* smallest;
    float* partials;
  };
  KW_FN static int64_t rows(const Args&) { return 1024; }
  KW_FN static int64_t elements(const Args&) { return kColumns; }
  static constexpr int kStages = 3;
  static constexpr Combine kCombine[] = {Combine::kSum, Combine::kSum, Combine::kMin};
  static constexpr bool kOverSegment[] = {true, true, false};
  static constexpr int kSegment = 16;
  static constexpr int kElements = 8192;
  static constexpr int kColumns = 8192;
  static constexpr bool kByTile = false;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;

  template <int V>
  struct Fields {
    Vec<V> product;
    Vec<V> centred;
  };
  template <int L>
  struct Scalars {
    Vec<L> mean;
    Vec<L> rstd;
    Vec<L> smallest;
  };

  KW_FN static void touch(const Args&, int) {}

  template <int V>
  KW_FN static void begin(Fields<V>& f, const Vec<V>& product) {
    f.product = product;
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args&, Cursor) {
    return f.product;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.mean[l] = total[l] / 16.0f;
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<1>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                   Cursor) {
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.centred[v] = f.product[v] - s.mean[v];
      out[v] = square(f.centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<1>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.rstd[l] = rsqrt(total[l] / 16.0f + 1e-5f);
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<2>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                   Cursor) {
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.centred[v] * s.rstd[v];
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<2>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    s.smallest = total;
  }

  KW_FN static void store_partial(Stage<2>, float total, const Args& a, Cursor at) {
    a.partials[at.row * 64 + at.element] = total;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    a.smallest[at.row] = s.smallest[0];
  }
};

// The largest of each of 8 segments of 32 columns, and every element without it.
struct BelowLargest {
  struct Args {
    float* out;
    float* largest;
  };
  KW_FN static int64_t rows(const Args&) { return 1024; }
  KW_FN static int64_t elements(const Args&) { return kColumns; }
  static constexpr int kStages = 1;
  static constexpr Combine kCombine[] = {Combine::kMax};
  static constexpr bool kOverSegment[] = {true};
  static constexpr int kSegment = 32;
  static constexpr int kElements = 256;
  static constexpr int kColumns = 256;
  static constexpr bool kByTile = false;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = true;

  template <int V>
  struct Fields {
    Vec<V> product;
  };
  template <int L>
  struct Scalars {
    Vec<L> largest;
  };

  KW_FN static void touch(const Args&, int) {}

  template <int V>
  KW_FN static void begin(Fields<V>& f, const Vec<V>& product) {
    f.product = product;
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args&, Cursor) {
    return f.product;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    s.largest = total;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<V>(a.out + at.row * kColumns + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v] - s.largest[v];
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>& s, const Args& a, Cursor at) {
    a.largest[at.row * (kColumns / kSegment) + at.element / kSegment] = s.largest[0];
  }
};

// product + bias + residual, 1001 columns: no tile width divides them, and pairs do not either.
struct Residual {
  struct Args {
    const float* bias;
    const float* residual;
    float* out;
  };
  KW_FN static int64_t rows(const Args&) { return 1024; }
  KW_FN static int64_t elements(const Args&) { return kColumns; }
  static constexpr int kStages = 0;
  static constexpr Combine kCombine[] = {Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kColumns = 1001;
  static constexpr bool kByTile = false;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;

  template <int V>
  struct Fields {
    Vec<V> product;
  };
  template <int L>
  struct Scalars {};

  KW_FN static void touch(const Args& a, int column) { kw::touch(a.bias + column); }

  template <int V>
  KW_FN static void begin(Fields<V>& f, const Vec<V>& product) {
    f.product = product;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, Cursor at) {
    const auto bias = load_row<V>(a.bias + at.element);
    const auto residual = load_row<V>(a.residual + at.row * kColumns + at.element);
    auto out = kw::store_row<V>(a.out + at.row * kColumns + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v] + bias[v] + residual[v];
    out.commit();
  }
};

}  // namespace check
}  // namespace kw
