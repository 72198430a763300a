// ---- Programs that several kernels run.

// linear (gemm_bias_hardtanh_mish_groupnorm.py:17), add (gemm_bias_hardtanh_mish_groupnorm.py:17),
// hardtanh (gemm_bias_hardtanh_mish_groupnorm.py:18),
// mish (gemm_bias_hardtanh_mish_groupnorm.py:18),
// group_norm (gemm_bias_hardtanh_mish_groupnorm.py:19)
struct LinearHardtanhMishGroupNorm {
  struct Args {
    const float* gemm_bias;
    const float* bias;
    const float* group_norm_weight;
    const float* group_norm_bias;
    float* KW_RESTRICT group_norm_affine_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {true, true};
  static constexpr int kSegment = 32;
  static constexpr int kElements = 256;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 256;
  }
  static constexpr int kColumns = 256;
  static constexpr bool kByTile = false;

  template <int V>
  struct Fields {
    kw::Vec<V> gemm_product;
    kw::Vec<V> mish;
    kw::Vec<V> group_norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> group_norm_sum;
    kw::Vec<L> group_norm_mean;
    kw::Vec<L> group_norm_square_sum;
    kw::Vec<L> group_norm_rstd;
  };

  KW_FN static void touch(const Args& a, int column) {
    kw::touch(a.gemm_bias + column);
    kw::touch(a.bias + column);
    kw::touch(a.group_norm_weight + column);
    kw::touch(a.group_norm_bias + column);
  }

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.gemm_product = product;
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto gemm_bias_in = kw::load_row<V>(a.gemm_bias + at.element);
    const auto bias_in = kw::load_row<V>(a.bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.mish[v] = kw::mish(kw::hardtanh(f.gemm_product[v] + (gemm_bias_in[v] + bias_in[v]), -1.0f,
          1.0f));
      out[v] = f.mish[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.group_norm_sum[l] = total[l];
      s.group_norm_mean[l] = s.group_norm_sum[l] * 0.03125f;
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
        kw::store_row<V>(a.group_norm_affine_out + at.row * 256 + at.element);
    const auto group_norm_weight_in = kw::load_row<V>(a.group_norm_weight + at.element);
    const auto group_norm_bias_in = kw::load_row<V>(a.group_norm_bias + at.element);
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
};

// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 8
// tiles of 128 x 64: 1 for each multiprocessor; 192,
// 256: too many accumulators; there is one wave, and all of the right operand is in it
struct LinearHardtanhMishGroupNormConfig {
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = 64;
  static constexpr int kStages = 4;
  static constexpr int kCluster = 2;
  static constexpr int kBand = 8;
  static constexpr int kVec = 4;
  static constexpr int kDepth = 256;
};

extern "C" int launch_linear_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers) {
  const LinearHardtanhMishGroupNorm::Args a{
      static_cast<const float*>(tensors[7]),
      static_cast<const float*>(tensors[8]),
      static_cast<const float*>(tensors[9]),
      static_cast<const float*>(tensors[10]),
      static_cast<float*>(tensors[11]),
      numbers[0],
  };
  const kw::GemmOperands g{
      {tensors[0], 0, 0, 256, 1},  // left
      {tensors[1], 0, 0, 256, 1},  // right
      tensors[2],  // left_halves
      tensors[3],  // left_scales
      tensors[4],  // right_halves
      tensors[5],  // right_scales
      static_cast<unsigned*>(tensors[6]),  // progress
      {1, 1},  // batch
      (a.batch),  // rows
      256,  // columns
      256,  // depth
  };
  const kw::GemmDecision how{
      static_cast<int>(numbers[1]),  // tiles
      static_cast<int>(numbers[2]),  // clusters
      numbers[3],  // early
      numbers[4] != 0,  // frozen
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[5]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[6]);
  return kw::gemm<kw::SplitFloat, LinearHardtanhMishGroupNorm,
      LinearHardtanhMishGroupNormConfig>(g, how, a, on);
}

extern "C" int freeze_linear_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers) {
  const kw::Operand weight{tensors[0], 0, 0, 256, 1};
  const kw::DeviceGuard guard(static_cast<int>(numbers[0]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[1]);
  return kw::split_all<2, kw::hopper::Major::kDepth, true, 256>(
      weight, {1, 1}, tensors[1], tensors[2], 256, 256, on);
}

// ---- A unit of its own, if need be. Cost: 1
// add (gemm_bias_hardtanh_mish_groupnorm.py:17), linear (gemm_bias_hardtanh_mish_groupnorm.py:17),
// hardtanh (gemm_bias_hardtanh_mish_groupnorm.py:18),
// mish (gemm_bias_hardtanh_mish_groupnorm.py:18),
// group_norm (gemm_bias_hardtanh_mish_groupnorm.py:19)
using AddBiasHardtanhMishGroupNorm = kw::Segments<kw::InMemory<LinearHardtanhMishGroupNorm, float>>;

// a row of 32 elements stays in registers
struct AddBiasHardtanhMishGroupNormConfig {
  static constexpr int kVec = 4;
  static constexpr int kLanes = 8;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 32;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

extern "C" int launch_add_bias_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers) {
  const AddBiasHardtanhMishGroupNorm::Args a{
      {
          static_cast<const float*>(tensors[1]),
          static_cast<const float*>(tensors[2]),
          static_cast<const float*>(tensors[3]),
          static_cast<const float*>(tensors[4]),
          static_cast<float*>(tensors[5]),
          numbers[0],
      },
      static_cast<const float*>(tensors[0]),
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::resident<AddBiasHardtanhMishGroupNorm, AddBiasHardtanhMishGroupNormConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_gemm_product_few_rows(void* const* tensors, const int64_t* numbers) {
  const kw::FewRows g{
      static_cast<const float*>(tensors[0]),  // left
      static_cast<const float*>(tensors[1]),  // right
      nullptr,  // bias
      static_cast<float*>(tensors[2]),  // out
      numbers[0],  // rows
      256,  // columns
      256,  // depth
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::few_rows<true>(g, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }

namespace of_forward {

extern "C" int launch_gemm_product_few_rows(void* const* tensors, const int64_t* numbers);
extern "C" int launch_add_bias_hardtanh_mish_group_norm(void* const* tensors, const int64_t* numbers);

// group_norm at gemm_bias_hardtanh_mish_groupnorm.py:19 in group_norm.
static void start_linear_hardtanh_mish_group_norm(kw::Run& run, int64_t batch, void* x,
    void* gemm_weight, void* gemm_bias, void* bias, void* group_norm_weight, void* group_norm_bias,
        void* group_norm) {
  const kw::Inside inside(run);
  void* const gemm_product = run.take(1024*batch);
  run.launch("launch_gemm_product_few_rows", launch_gemm_product_few_rows, {x, gemm_weight,
      gemm_product}, (batch));
  run.launch("launch_add_bias_hardtanh_mish_group_norm", launch_add_bias_hardtanh_mish_group_norm,
      {gemm_product, gemm_bias, bias, group_norm_weight, group_norm_bias, group_norm}, batch);
}

extern "C" int run_forward(void* const* tensors, const int64_t* numbers, int64_t* room) {
  kw::Run run(tensors, 7, numbers + 1);
  void* const x_ = run.given(0);
  void* const gemm_weight = run.given(1);
  void* const gemm_bias = run.given(2);
  void* const bias = run.given(3);
  void* const group_norm_weight = run.given(4);
  void* const group_norm_bias = run.given(5);
  void* const group_norm = run.given(6);
  const int64_t batch = numbers[0];
  start_linear_hardtanh_mish_group_norm(run, batch, x_, gemm_weight, gemm_bias, bias,
      group_norm_weight, group_norm_bias, group_norm);
  return run.ended(room);
}

}
