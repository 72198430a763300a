// ---- A unit of its own, if need be. Cost: 1
// linear (matmul_groupnorm_leakyrelu_sum.py:15),
// group_norm (matmul_groupnorm_leakyrelu_sum.py:15),
// leaky_relu (matmul_groupnorm_leakyrelu_sum.py:15), add (matmul_groupnorm_leakyrelu_sum.py:16)
struct BiasGroupNormLeakyReluAdd {
  struct Args {
    const float* fc_product;
    const float* fc_bias;
    const float* norm_weight;
    const float* norm_bias;
    float* KW_RESTRICT add_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kCentre[] = {true, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 16;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (16*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 16;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> fc;
    kw::Vec<V> norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> norm_mean;
    kw::Vec<L> norm_square_sum;
    kw::Vec<L> norm_rstd;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto fc_product_in = kw::load_row<V>(a.fc_product + at.row * 16 + at.element);
    const auto fc_bias_in = kw::load_row<V>(a.fc_bias + (at.row % 16) * 16 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.fc[v] = fc_product_in[v] + fc_bias_in[v];
      out[v] = f.fc[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L, double>& total,
      const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_mean[l] = static_cast<float>(total[l] * (1.0 / 16.0));
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.norm_centred[v] = f.fc[v] - s.norm_mean[v];
      out[v] = kw::square(f.norm_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_square_sum[l] = total[l];
      s.norm_rstd[l] = kw::rsqrt(s.norm_square_sum[l] * 0.0625f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto add_out = kw::store_row<V>(a.add_out + at.row * 16 + at.element);
    const auto norm_weight_in = kw::load_row<V>(a.norm_weight + (at.row % 16) * 16 + at.element);
    const auto norm_bias_in = kw::load_row<V>(a.norm_bias + (at.row % 16) * 16 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      add_out[v] =
          kw::leaky_relu(f.norm_centred[v] * s.norm_rstd[v] * norm_weight_in[v] + norm_bias_in[v],
              0.01f) * 2.0f;
    }
    add_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// a row of 16 elements stays in the cache
struct BiasGroupNormLeakyReluAddConfig {
  static constexpr int kVec = 16;
  static constexpr int kRun = 16;
};

extern "C" int launch_bias_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const BiasGroupNormLeakyReluAdd::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<const float*>(tensors[3]),
      static_cast<float*>(tensors[4]),
      numbers[0],
  };
  kw::resident<BiasGroupNormLeakyReluAdd, BiasGroupNormLeakyReluAddConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
