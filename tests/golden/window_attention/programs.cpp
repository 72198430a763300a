// ---- A unit of its own, if need be. Cost: 4
// matmul (window_attention.py:21), mul (window_attention.py:21), add (window_attention.py:21),
// softmax (window_attention.py:22), matmul (window_attention.py:22),
// transpose (window_attention.py:23)
struct MatmulMulAddSoftmaxTransposeScores {
  struct Args {
    const float* bias;
    const float* mask;
    int64_t batch;
  };

  template <int V>
  struct Fields {
    kw::Vec<V> matmul_matmul;
  };
  template <int L>
  struct Scalars {
  };

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.matmul_matmul = product;
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto bias_in = kw::load_row<V>(a.bias + (at.row % 27) * 9 + at.element);
    const auto mask_in = kw::load_row<V>(a.mask + (at.row % 9) * 9 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = f.matmul_matmul[v] * 0.25f + (bias_in[v] + mask_in[v]);
    }
    return out;
  }

  KW_FN static float weight(float, float sum) {
    return kw::reciprocal(sum);
  }
};

// matmul (window_attention.py:21), mul (window_attention.py:21), add (window_attention.py:21),
// softmax (window_attention.py:22), matmul (window_attention.py:22),
// transpose (window_attention.py:23)
struct MatmulMulAddSoftmaxTranspose {
  struct Args {
    float* KW_RESTRICT transpose_2_out;
    int64_t batch;
  };

  template <int V>
  struct Fields {
    kw::Vec<V> matmul_2;
  };
  template <int L>
  struct Scalars {
  };

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.matmul_2 = product;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto transpose_2_out =
        kw::store_row<V>(a.transpose_2_out + (at.row / 27) * 432 + (at.row / 9 % 3) * 16 +
            (at.row % 9) * 48 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      transpose_2_out[v] = f.matmul_2[v];
    }
    transpose_2_out.commit();
  }
};

// 9 keys of a head, packed once for its queries
struct MatmulMulAddSoftmaxTransposeConfig {
  static constexpr int kVec = 9;
  static constexpr int kRun = 9;
  static constexpr int kOutVec = 16;
  static constexpr int kOutRun = 16;
  static constexpr int kAllKeys = 9;
  static constexpr int kDepth = 16;
  static constexpr int kColumns = 16;
  static constexpr int kBounded = 0;
  static constexpr int kHorizon = 0;
};

extern "C" int launch_matmul_mul_add_softmax_transpose(void* const* tensors, const int64_t* numbers) {
  const MatmulMulAddSoftmaxTranspose::Args a{
      static_cast<float*>(tensors[5]),
      numbers[0],
  };
  const MatmulMulAddSoftmaxTransposeScores::Args scores{
      static_cast<const float*>(tensors[3]),
      static_cast<const float*>(tensors[4]),
      numbers[0],
  };
  const kw::AttentionOperands g{
      {tensors[0], 1296, 16, 144, 1},  // query
      {static_cast<const float*>(tensors[1]) + 48, 1296, 16, 144, 1},  // key
      {static_cast<const float*>(tensors[2]) + 96, 1296, 16, 1, 144},  // value
      {static_cast<int>((a.batch)), 3},  // batch
      9,  // rows
  };
  kw::attend<MatmulMulAddSoftmaxTransposeScores, MatmulMulAddSoftmaxTranspose,
      MatmulMulAddSoftmaxTransposeConfig>(g, scores, a, static_cast<int>(numbers[1]));
  return 0;
}
