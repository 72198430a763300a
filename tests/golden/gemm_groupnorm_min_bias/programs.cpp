// ---- A unit of its own, if need be. Cost: 1
// linear (gemm_groupnorm_min_bias.py:15), group_norm (gemm_groupnorm_min_bias.py:16),
// min (gemm_groupnorm_min_bias.py:17)
struct BiasGroupNormMin {
  struct Args {
    const float* gemm_product;
    const float* gemm_bias;
    const float* group_norm_weight;
    const float* group_norm_bias;
    float* min_value_values_out;
    int64_t batch;
  };
  static constexpr int kStages = 3;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum,
      kw::Combine::kMin};
  static constexpr bool kOverSegment[] = {true, true, false};
  static constexpr bool kCentre[] = {true, false, false};
  static constexpr int kSegment = 16;
  static constexpr int kElements = 256;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 256;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> gemm;
    kw::Vec<V> group_norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> group_norm_mean;
    kw::Vec<L> group_norm_square_sum;
    kw::Vec<L> group_norm_rstd;
    kw::Vec<L> min_value_values;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto gemm_product_in = kw::load_row<V>(a.gemm_product + at.row * 256 + at.element);
    const auto gemm_bias_in = kw::load_row<V>(a.gemm_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.gemm[v] = gemm_product_in[v] + gemm_bias_in[v];
      out[v] = f.gemm[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L, double>& total,
      const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_mean[l] = static_cast<float>(total[l] * (1.0 / 16.0));
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.group_norm_centred[v] = f.gemm[v] - s.group_norm_mean[v];
      out[v] = kw::square(f.group_norm_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_square_sum[l] = total[l];
      s.group_norm_rstd[l] = kw::rsqrt(s.group_norm_square_sum[l] * 0.0625f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<2>, Fields<V>& f, const Scalars<L>& s,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto group_norm_weight_in = kw::load_row<V>(a.group_norm_weight + at.element);
    const auto group_norm_bias_in = kw::load_row<V>(a.group_norm_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = f.group_norm_centred[v] * s.group_norm_rstd[v] * group_norm_weight_in[v] +
          group_norm_bias_in[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<2>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.min_value_values[l] = total[l];
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, kw::Cursor at) {
    auto min_value_values_out = kw::store_row<L>(a.min_value_values_out + at.row);
    KW_LANES
    for (int l = 0; l < L; ++l) {
      min_value_values_out[l] = s.min_value_values[l];
    }
    min_value_values_out.commit();
  }
};

// a row of 256 elements stays in the cache
struct BiasGroupNormMinConfig {
  static constexpr int kVec = 16;
  static constexpr int kRun = 16;
};

extern "C" int launch_bias_group_norm_min(void* const* tensors, const int64_t* numbers) {
  const BiasGroupNormMin::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<const float*>(tensors[3]),
      static_cast<float*>(tensors[4]),
      numbers[0],
  };
  kw::resident<BiasGroupNormMin, BiasGroupNormMinConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}

// ---- A unit of its own, if need be. Cost: 1
// add (gemm_groupnorm_min_bias.py:18)
struct Add {
  struct Args {
    const float* min_value_values;
    const float* bias;
    float* KW_RESTRICT add_out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 0;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args&) {
    return 256;
  }
  KW_FN static int64_t elements(const Args& a) {
    return (a.batch);
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
    auto add_out = kw::store_row<V>(a.add_out + at.row * (a.batch) + at.element);
    const auto min_value_values_in = kw::load_row<V>(a.min_value_values + at.element);
    const auto bias_in = kw::load_same<V>(a.bias + at.row);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      add_out[v] = min_value_values_in[v] + bias_in[v];
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

// no reduction: blocks of elements
struct AddConfig {
  static constexpr int kVec = 16;
};

extern "C" int launch_add(void* const* tensors, const int64_t* numbers) {
  const Add::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  kw::pointwise<Add, AddConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
