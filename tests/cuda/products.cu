// One product, compiled for one loop, tile and layout that macros give, behind a C function: what
// handmade.py builds, to try kernels/gemm_sm90.cuh without a model around it. The epilogue stores.
#include "gemm_sm90.cuh"

namespace handmade {

struct Tile {
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = WIDTH;
  static constexpr int kStages = STAGES;
  static constexpr int kCluster = CLUSTER;
  static constexpr int kBand = 8;
  static constexpr int kVec = LANES;
  static constexpr int kDepth = 0;  // any
};

struct Stored {
  struct Args {
    OUT* out;
  };
  static constexpr int kStages = 0;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr bool kByTile = false;
  static constexpr int kColumns = COLUMNS;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;

  template <int V>
  struct Fields {
    kw::Vec<V> product;
  };
  template <int L>
  struct Scalars {};

  KW_FN static void touch(const Args&, int) {}

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.product = product;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, kw::Cursor at) {
    auto out = kw::store_row<V>(a.out + at.row * kColumns + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.product[v];
    out.commit();
  }
};

using kw::hopper::Major;
using Layout = kw::GemmLayout<BATCHED, Major::LEFT, Major::RIGHT>;

inline kw::Operand operand(const void* at, const int64_t* strides) {
  return {at, strides[0], strides[1], strides[2], strides[3]};
}

}  // namespace handmade

using namespace handmade;

extern "C" int launch(void* const* tensors, const int64_t* n) {
  const kw::GemmOperands g{
      operand(tensors[0], n),
      operand(tensors[1], n + 4),
      tensors[2],
      tensors[3],
      tensors[4],
      tensors[5],
      static_cast<unsigned*>(tensors[6]),
      {static_cast<int>(n[8]), static_cast<int>(n[9])},
      n[10],
      COLUMNS,
      static_cast<int>(n[11]),
  };
  const kw::GemmDecision how{static_cast<int>(n[12]), static_cast<int>(n[13]), n[14], n[15] != 0};
  const auto on = reinterpret_cast<cudaStream_t>(n[16]);
  return kw::gemm<kw::LOOP, Stored, Tile, Layout>(g, how, {static_cast<OUT*>(tensors[7])}, on);
}
