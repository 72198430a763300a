// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

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

// 16 queries a block, 9 keys in one tile of 16
struct MatmulMulAddSoftmaxTransposeConfig {
  static constexpr int kPlanes = 2;
  static constexpr int kWarps = 1;
  static constexpr int kTiles = 1;
  static constexpr int kBlocks = 16;
  static constexpr int kKeys = 16;
  static constexpr int kTogether = 4;
  static constexpr int kAllKeys = 9;
  static constexpr int kRoom = 16;
  static constexpr int kDepth = 16;
  static constexpr int kColumns = 16;
  static constexpr int kVec = 1;
  static constexpr int kOutVec = 2;
  static constexpr int kQueryVec = 2;
  static constexpr int kQueryAlong = 1;
  static constexpr int kKeyVec = 2;
  static constexpr int kKeyAlong = 1;
  static constexpr int kValueVec = 1;
  static constexpr int kValueAlong = 0;
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
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::attend<float, MatmulMulAddSoftmaxTransposeScores, MatmulMulAddSoftmaxTranspose,
      MatmulMulAddSoftmaxTransposeConfig>(g, scores, a, on);
}

// ---- A unit of its own, if need be. Cost: 1
// mul (window_attention.py:21), add (window_attention.py:21), softmax (window_attention.py:22)
struct MulAddSoftmax {
  struct Args {
    const float* matmul_matmul;
    const float* bias;
    const float* mask;
    float* KW_RESTRICT softmax_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kMax, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 9;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (27*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 9;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> add_2;
    kw::Vec<V> softmax_exp;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> softmax_max;
    kw::Vec<L> softmax_exp_sum;
    kw::Vec<L> softmax_reciprocal_sum;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto matmul_matmul_in = kw::load_row<V>(a.matmul_matmul + at.row * 9 + at.element);
    const auto bias_in = kw::load_row<V>(a.bias + (at.row % 27) * 9 + at.element);
    const auto mask_in = kw::load_row<V>(a.mask + (at.row % 9) * 9 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.add_2[v] = matmul_matmul_in[v] * 0.25f + (bias_in[v] + mask_in[v]);
      out[v] = f.add_2[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.softmax_max[l] = total[l];
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.softmax_exp[v] = kw::exp_below(f.add_2[v] - s.softmax_max[v]);
      out[v] = f.softmax_exp[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.softmax_exp_sum[l] = total[l];
      s.softmax_reciprocal_sum[l] = kw::reciprocal(s.softmax_exp_sum[l]);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto softmax_out = kw::store_row<V>(a.softmax_out + at.row * 9 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      softmax_out[v] = f.softmax_exp[v] * s.softmax_reciprocal_sum[v];
    }
    softmax_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// a row of 9 elements stays in registers
struct MulAddSoftmaxConfig {
  static constexpr int kVec = 1;
  static constexpr int kLanes = 16;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 16;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

extern "C" int launch_mul_add_softmax(void* const* tensors, const int64_t* numbers) {
  const MulAddSoftmax::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<float*>(tensors[3]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::resident<MulAddSoftmax, MulAddSoftmaxConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 1
// transpose (window_attention.py:23)
struct Transpose {
  struct Args {
    const float* matmul_2;
    float* KW_RESTRICT transpose_2_out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 16;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (27*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 16;
  }

  template <int V>
  struct Fields {
  };
  template <int L>
  struct Scalars {
  };

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto transpose_2_out = kw::store_row<V>(a.transpose_2_out + at.row * 16 + at.element);
    const auto matmul_2_in =
        kw::load_row<V>(a.matmul_2 + (at.row / 27) * 432 + (at.row / 3 % 9) * 16 +
            (at.row % 3) * 144 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      transpose_2_out[v] = matmul_2_in[v];
    }
    transpose_2_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// no reduction: a flat grid
struct TransposeConfig {
  static constexpr int kVec = 4;
  static constexpr int kThreads = 256;
  static constexpr int kChunks = 1;
  static constexpr int kFlat = 0;
};

extern "C" int launch_transpose(void* const* tensors, const int64_t* numbers) {
  const Transpose::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<float*>(tensors[1]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::pointwise<Transpose, TransposeConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_qkv_few_rows(void* const* tensors, const int64_t* numbers) {
  const kw::FewRows g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      static_cast<const float*>(tensors[2]),  // bias
      static_cast<float*>(tensors[3]),  // out
      numbers[0],  // rows
      144,  // columns
      48,  // depth
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::few_rows<true>(g, on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_proj_few_rows(void* const* tensors, const int64_t* numbers) {
  const kw::FewRows g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      static_cast<const float*>(tensors[2]),  // bias
      static_cast<float*>(tensors[3]),  // out
      numbers[0],  // rows
      48,  // columns
      48,  // depth
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::few_rows<true>(g, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }

namespace of_forward {

extern "C" int launch_qkv_few_rows(void* const* tensors, const int64_t* numbers);
extern "C" int launch_matmul_mul_add_softmax_transpose(void* const* tensors, const int64_t* numbers);
extern "C" int launch_proj_few_rows(void* const* tensors, const int64_t* numbers);

// linear at window_attention.py:19 in qkv.
static void start_linear(kw::Run& run, int64_t batch, void* x, void* qkv_weight, void* qkv_bias,
    void* qkv) {
  run.launch("launch_qkv_few_rows", launch_qkv_few_rows, {x, qkv_weight, qkv_bias, qkv}, (9*batch));
}

// transpose at window_attention.py:23.
static void start_matmul_mul_add_softmax_transpose(kw::Run& run, int64_t batch, void* qkv,
    void* bias, void* mask, void* transpose_2) {
  run.launch("launch_matmul_mul_add_softmax_transpose", launch_matmul_mul_add_softmax_transpose,
      {qkv, qkv, qkv, bias, mask, transpose_2}, batch);
}

// linear at window_attention.py:23 in proj.
static void start_linear_2(kw::Run& run, int64_t batch, void* transpose_2, void* proj_weight,
    void* proj_bias, void* proj) {
  run.launch("launch_proj_few_rows", launch_proj_few_rows, {transpose_2, proj_weight, proj_bias,
      proj}, (9*batch));
}

extern "C" int run_forward(void* const* tensors, const int64_t* numbers, int64_t* room) {
  kw::Run run(tensors, 8, numbers + 1);
  void* const x_ = run.given(0);
  void* const qkv_weight = run.given(1);
  void* const qkv_bias = run.given(2);
  void* const bias = run.given(3);
  void* const mask = run.given(4);
  void* const proj_weight = run.given(5);
  void* const proj_bias = run.given(6);
  void* const proj = run.given(7);
  const int64_t batch = numbers[0];
  void* const qkv = run.take(5184*batch);
  start_linear(run, batch, x_, qkv_weight, qkv_bias, qkv);
  void* const transpose_2 = run.take(1728*batch);
  start_matmul_mul_add_softmax_transpose(run, batch, qkv, bias, mask, transpose_2);
  start_linear_2(run, batch, transpose_2, proj_weight, proj_bias, proj);
  return run.ended(room);
}

}
