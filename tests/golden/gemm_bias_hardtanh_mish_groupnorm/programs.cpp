// ---- A unit of its own, if need be. Cost: 1
// add (gemm_bias_hardtanh_mish_groupnorm.py:17), linear (gemm_bias_hardtanh_mish_groupnorm.py:17),
// hardtanh (gemm_bias_hardtanh_mish_groupnorm.py:18),
// mish (gemm_bias_hardtanh_mish_groupnorm.py:18),
// group_norm (gemm_bias_hardtanh_mish_groupnorm.py:19)
struct AddBiasHardtanhMishGroupNorm {
  struct Args {
    const float* gemm_product;
    const float* gemm_bias;
    const float* bias;
    const float* group_norm_weight;
    const float* group_norm_bias;
    float* KW_RESTRICT group_norm_affine_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kCentre[] = {true, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 32;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (8*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 32;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> mish;
    kw::Vec<V> group_norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> group_norm_mean;
    kw::Vec<L> group_norm_square_sum;
    kw::Vec<L> group_norm_rstd;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto gemm_product_in = kw::load_row<V>(a.gemm_product + at.row * 32 + at.element);
    const auto gemm_bias_in = kw::load_row<V>(a.gemm_bias + (at.row % 8) * 32 + at.element);
    const auto bias_in = kw::load_row<V>(a.bias + (at.row % 8) * 32 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.mish[v] = kw::mish(kw::hardtanh(gemm_product_in[v] + (gemm_bias_in[v] + bias_in[v]), -1.0f,
          1.0f));
      out[v] = f.mish[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L, double>& total,
      const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_mean[l] = static_cast<float>(total[l] * (1.0 / 32.0));
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.group_norm_centred[v] = f.mish[v] - s.group_norm_mean[v];
      out[v] = kw::square(f.group_norm_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_square_sum[l] = total[l];
      s.group_norm_rstd[l] = kw::rsqrt(s.group_norm_square_sum[l] * 0.03125f + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto group_norm_affine_out =
        kw::store_row<V>(a.group_norm_affine_out + at.row * 32 + at.element);
    const auto group_norm_weight_in =
        kw::load_row<V>(a.group_norm_weight + (at.row % 8) * 32 + at.element);
    const auto group_norm_bias_in =
        kw::load_row<V>(a.group_norm_bias + (at.row % 8) * 32 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      group_norm_affine_out[v] =
          f.group_norm_centred[v] * s.group_norm_rstd[v] * group_norm_weight_in[v] +
              group_norm_bias_in[v];
    }
    group_norm_affine_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// a row of 32 elements stays in the cache
struct AddBiasHardtanhMishGroupNormConfig {
  static constexpr int kVec = 16;
  static constexpr int kRun = 32;
};

extern "C" int launch_add_bias_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers) {
  const AddBiasHardtanhMishGroupNorm::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<const float*>(tensors[3]),
      static_cast<const float*>(tensors[4]),
      static_cast<float*>(tensors[5]),
      numbers[0],
  };
  kw::resident<AddBiasHardtanhMishGroupNorm, AddBiasHardtanhMishGroupNormConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
