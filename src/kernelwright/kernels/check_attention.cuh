// Programs around an attention, written by hand to the contract in attention.cuh, for check.cu.
#pragma once

#include <cuda_runtime.h>

#include "attention.cuh"

namespace kw {
namespace check {

// Scaled scores with a bias for each pair of tokens, six heads of 49 tokens.
struct BiasedScores {
  struct Args {
    const float* bias;
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
                                   Cursor at) {
    Vec<V> out;
    const auto bias =
        load_every<V, 6>(a.bias + at.row % 49 * 294 + at.element * 6 + at.row / 49 % 6);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v] * 0.1767767f + bias[v];
    return out;
  }

  KW_FN static float weight(float, float sum) { return reciprocal(sum); }
};

// The results of a head beside those of the next one.
template <int kHeads, int kTokens, int kColumns>
struct HeadsTogether {
  struct Args {
    float* out;
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
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, Cursor at) {
    constexpr int kAll = kHeads * kColumns;
    auto out =
        store_row<V>(a.out + at.row / (kHeads * kTokens) * (kTokens * kAll) +
                     at.row / kTokens % kHeads * kColumns + at.row % kTokens * kAll + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v];
    out.commit();
  }
};

// A window of 49 tokens to a block, its keys in one tile.
struct Window {
  static constexpr int kPlanes = 2;
  static constexpr int kWarps = 4;
  static constexpr int kTiles = 1;
  static constexpr int kBlocks = 4;
  static constexpr int kKeys = 56;
  static constexpr int kTogether = 4;
  static constexpr int kAllKeys = 49;
  static constexpr int kRoom = 64;
  static constexpr int kDepth = 32;
  static constexpr int kColumns = 32;
  static constexpr int kVec = 1;
  static constexpr int kOutVec = 2;
  static constexpr int kQueryVec = 2;
  static constexpr int kQueryAlong = 1;
  static constexpr int kKeyVec = 2;
  static constexpr int kValueVec = 1;
  static constexpr int kKeyAlong = 1;
  static constexpr int kValueAlong = 0;
  static constexpr int kBounded = 0;
  static constexpr int kHorizon = 0;
};

// 512 tokens of 64 features, rounded to TF32, each looking at those before it.
struct Sequence : Window {
  static constexpr int kPlanes = 1;
  static constexpr int kBounded = 1;
  static constexpr int kBlocks = 2;
  static constexpr int kKeys = 16;
  static constexpr int kAllKeys = 512;
  static constexpr int kRoom = 512;
  static constexpr int kDepth = 64;
  static constexpr int kColumns = 64;
};

// The same with float32 accuracy, its keys across memory.
struct KeysAcross : Sequence {
  static constexpr int kPlanes = 2;
  static constexpr int kTiles = 1;
  static constexpr int kKeyVec = 1;
  static constexpr int kKeyAlong = 0;
  static constexpr int kValueAlong = 1;
};

}  // namespace check
}  // namespace kw
