// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 1
// linear (linear_multiply_batch_norm_train.py:15), mul (linear_multiply_batch_norm_train.py:15),
// batch_norm (linear_multiply_batch_norm_train.py:15)
struct BiasMulBatchNorm {
  struct Args {
    const float* linear_product;
    const float* linear_bias;
    const float* scale;
    const float* norm_weight;
    const float* norm_bias;
    const float* norm_running_mean;
    const float* norm_running_var;
    float* KW_RESTRICT norm_2_affine_out;
    float* norm_running_mean_out;
    float* norm_running_var_out;
    int64_t* norm_num_batches_tracked_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kCentre[] = {true, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 0;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args&) {
    return 24;
  }
  KW_FN static int64_t elements(const Args& a) {
    return (a.batch);
  }

  template <int V>
  struct Fields {
    kw::Vec<V> mul;
    kw::Vec<V> norm_2_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> norm_2_sum;
    kw::Vec<L> norm_2_mean;
    kw::Vec<L> norm_2_square_sum;
    kw::Vec<L> norm_2_rstd;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto linear_product_in = kw::load_row<V>(a.linear_product + at.row + at.element * 24);
    const auto linear_bias_in = kw::load_row<V>(a.linear_bias + at.row);
    const auto scale_in = kw::load_row<V>(a.scale + at.row);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.mul[v] = (linear_product_in[v] + linear_bias_in[v]) * scale_in[v];
      out[v] = f.mul[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L, double>& total,
      const Args& a) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_2_sum[l] = static_cast<float>(total[l]);
      s.norm_2_mean[l] = static_cast<float>(total[l] * (1.0 / static_cast<double>((a.batch))));
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.norm_2_centred[v] = f.mul[v] - s.norm_2_mean[v];
      out[v] = kw::square(f.norm_2_centred[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args& a) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_2_square_sum[l] = total[l];
      s.norm_2_rstd[l] = kw::rsqrt(kw::quotient(s.norm_2_square_sum[l],
          static_cast<float>((a.batch))) + 1e-05f);
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto norm_2_affine_out = kw::store_row<V>(a.norm_2_affine_out + at.row + at.element * 24);
    const auto norm_weight_in = kw::load_row<V>(a.norm_weight + at.row);
    const auto norm_bias_in = kw::load_row<V>(a.norm_bias + at.row);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      norm_2_affine_out[v] =
          f.norm_2_centred[v] * s.norm_2_rstd[v] * norm_weight_in[v] + norm_bias_in[v];
    }
    norm_2_affine_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, kw::Cursor at) {
    const auto norm_running_mean_in = kw::load_before<L>(a.norm_running_mean + at.row);
    auto norm_running_mean_out = kw::store_row<L>(a.norm_running_mean_out + at.row);
    KW_LANES
    for (int l = 0; l < L; ++l) {
      norm_running_mean_out[l] = norm_running_mean_in[l] * 0.9f + s.norm_2_mean[l] * 0.1f;
    }
    norm_running_mean_out.commit();
    const auto norm_running_var_in = kw::load_before<L>(a.norm_running_var + at.row);
    auto norm_running_var_out = kw::store_row<L>(a.norm_running_var_out + at.row);
    KW_LANES
    for (int l = 0; l < L; ++l) {
      norm_running_var_out[l] =
          norm_running_var_in[l] * 0.9f + kw::quotient(s.norm_2_square_sum[l],
              static_cast<float>((a.batch - 1))) * 0.1f;
    }
    norm_running_var_out.commit();
    if (at.row == 0) {
      *a.norm_num_batches_tracked_out += 1;
    }
  }
};

// neighbours in memory belong to different rows; long and few,
// so that all blocks that run at once share them
struct BiasMulBatchNormConfig {
  static constexpr int kVec = 4;
  static constexpr int kWidth = 8;
  static constexpr int kDepth = 128;
  static constexpr int kThreads = 1024;
  static constexpr int kShort = 4096;
  static constexpr int kParts = 264;
};

extern "C" int launch_bias_mul_batch_norm(void* const* tensors, const int64_t* numbers) {
  const BiasMulBatchNorm::Args a{
      static_cast<const float*>(tensors[1]),
      static_cast<const float*>(tensors[2]),
      static_cast<const float*>(tensors[3]),
      static_cast<const float*>(tensors[4]),
      static_cast<const float*>(tensors[5]),
      static_cast<const float*>(tensors[6]),
      static_cast<const float*>(tensors[7]),
      static_cast<float*>(tensors[8]),
      static_cast<float*>(tensors[9]),
      static_cast<float*>(tensors[10]),
      static_cast<int64_t*>(tensors[11]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::spread_strided<BiasMulBatchNorm, BiasMulBatchNormConfig>(a,
      static_cast<float*>(tensors[0]), on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_linear_product_few_rows(void* const* tensors, const int64_t* numbers) {
  const kw::FewRows g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      nullptr,  // bias
      static_cast<float*>(tensors[2]),  // out
      numbers[0],  // rows
      24,  // columns
      40,  // depth
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::few_rows<true>(g, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }

namespace of_forward {

extern "C" int launch_linear_product_few_rows(void* const* tensors, const int64_t* numbers);
extern "C" int launch_bias_mul_batch_norm(void* const* tensors, const int64_t* numbers);

// linear at linear_multiply_batch_norm_train.py:15 in linear.
static void start_linear(kw::Run& run, int64_t batch, void* x, void* linear_weight,
    void* linear_product) {
  run.launch("launch_linear_product_few_rows", launch_linear_product_few_rows, {x, linear_weight,
      linear_product}, (batch));
}

extern "C" int run_forward(void* const* tensors, const int64_t* numbers, int64_t* room) {
  kw::Run run(tensors, 10, numbers + 1);
  void* const x_ = run.given(0);
  void* const linear_weight = run.given(1);
  void* const linear_bias = run.given(2);
  void* const scale = run.given(3);
  void* const norm_weight = run.given(4);
  void* const norm_bias = run.given(5);
  void* const norm_running_mean = run.given(6);
  void* const norm_running_var = run.given(7);
  void* const norm_2_affine = run.given(8);
  void* const norm_num_batches_tracked = run.given(9);
  const int64_t batch = numbers[0];
  void* const linear_product = run.take(96*batch);
  start_linear(run, batch, x_, linear_weight, linear_product);
  void* const sums = run.take(101376);
  run.launch("launch_bias_mul_batch_norm", launch_bias_mul_batch_norm, {sums, linear_product,
      linear_bias, scale, norm_weight, norm_bias, norm_running_mean, norm_running_var,
          norm_2_affine, norm_running_mean, norm_running_var, norm_num_batches_tracked}, batch);
  return run.ended(room);
}

}
