// ---- A unit of its own, if need be. Cost: 1
// linear (window_attention.py:19), reshape (window_attention.py:19),
// permute (window_attention.py:20)
struct BiasPermute {
  struct Args {
    const float* qkv_product;
    const float* qkv_bias;
    float* KW_RESTRICT permute_out;
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
    return (81*a.batch);
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
    auto permute_out = kw::store_row<V>(a.permute_out + at.row * 16 + at.element);
    const auto qkv_product_in =
        kw::load_row<V>(a.qkv_product + (at.row / (27*a.batch)) * 48 +
            (at.row / 27 % (a.batch)) * 1296 + (at.row / 9 % 3) * 16 + (at.row % 9) * 144 +
                at.element);
    const auto qkv_bias_in =
        kw::load_row<V>(a.qkv_bias + (at.row / (27*a.batch)) * 48 + (at.row / 9 % 3) * 16 +
            at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      permute_out[v] = qkv_product_in[v] + qkv_bias_in[v];
    }
    permute_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// no reduction: blocks of elements
struct BiasPermuteConfig {
  static constexpr int kVec = 16;
};

extern "C" int launch_bias_permute(void* const* tensors, const int64_t* numbers) {
  const BiasPermute::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  kw::pointwise<BiasPermute, BiasPermuteConfig>(a, static_cast<int>(numbers[1]));
  return 0;
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

// a row of 9 elements stays in the cache
struct MulAddSoftmaxConfig {
  static constexpr int kVec = 9;
  static constexpr int kRun = 9;
};

extern "C" int launch_mul_add_softmax(void* const* tensors, const int64_t* numbers) {
  const MulAddSoftmax::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<float*>(tensors[3]),
      numbers[0],
  };
  kw::resident<MulAddSoftmax, MulAddSoftmaxConfig>(a, static_cast<int>(numbers[1]));
  return 0;
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

// no reduction: blocks of elements
struct TransposeConfig {
  static constexpr int kVec = 16;
};

extern "C" int launch_transpose(void* const* tensors, const int64_t* numbers) {
  const Transpose::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<float*>(tensors[1]),
      numbers[0],
  };
  kw::pointwise<Transpose, TransposeConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
