// ---- Programs that several kernels run.

// linear (matmul_groupnorm_leakyrelu_sum.py:15),
// group_norm (matmul_groupnorm_leakyrelu_sum.py:15),
// leaky_relu (matmul_groupnorm_leakyrelu_sum.py:15), add (matmul_groupnorm_leakyrelu_sum.py:16)
struct LinearGroupNormLeakyReluAdd {
  struct Args {
    const float* fc_bias;
    const float* norm_weight;
    const float* norm_bias;
    float* KW_RESTRICT add_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {true, true};
  static constexpr int kSegment = 16;
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
    kw::Vec<V> fc_product;
    kw::Vec<V> fc;
    kw::Vec<V> norm_centred;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> norm_sum;
    kw::Vec<L> norm_mean;
    kw::Vec<L> norm_square_sum;
    kw::Vec<L> norm_rstd;
  };

  KW_FN static void touch(const Args& a, int column) {
    kw::touch(a.fc_bias + column);
    kw::touch(a.norm_weight + column);
    kw::touch(a.norm_bias + column);
  }

  template <int V>
  KW_FN static void begin(Fields<V>& f, const kw::Vec<V>& product) {
    f.fc_product = product;
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto fc_bias_in = kw::load_row<V>(a.fc_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.fc[v] = f.fc_product[v] + fc_bias_in[v];
      out[v] = f.fc[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.norm_sum[l] = total[l];
      s.norm_mean[l] = s.norm_sum[l] * 0.0625f;
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
    auto add_out = kw::store_row<V>(a.add_out + at.row * 256 + at.element);
    const auto norm_weight_in = kw::load_row<V>(a.norm_weight + at.element);
    const auto norm_bias_in = kw::load_row<V>(a.norm_bias + at.element);
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
};

// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 8
// tiles of 128 x 64: 1 for each multiprocessor; 192,
// 256: too many accumulators; there is one wave, and all of the right operand is in it
struct LinearGroupNormLeakyReluAddConfig {
  static constexpr int kBlockM = 128;
  static constexpr int kBlockN = 64;
  static constexpr int kStages = 4;
  static constexpr int kCluster = 2;
  static constexpr int kBand = 8;
  static constexpr int kVec = 4;
  static constexpr int kDepth = 256;
};

extern "C" int launch_linear_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const LinearGroupNormLeakyReluAdd::Args a{
      static_cast<const float*>(tensors[7]),
      static_cast<const float*>(tensors[8]),
      static_cast<const float*>(tensors[9]),
      static_cast<float*>(tensors[10]),
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
  return kw::gemm<kw::SplitFloat, LinearGroupNormLeakyReluAdd,
      LinearGroupNormLeakyReluAddConfig>(g, how, a, on);
}

extern "C" int freeze_linear_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const kw::Operand weight{tensors[0], 0, 0, 256, 1};
  const kw::DeviceGuard guard(static_cast<int>(numbers[0]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[1]);
  return kw::split_all<2, kw::hopper::Major::kDepth, true, 256>(
      weight, {1, 1}, tensors[1], tensors[2], 256, 256, on);
}

// ---- A unit of its own, if need be. Cost: 1
// linear (matmul_groupnorm_leakyrelu_sum.py:15),
// group_norm (matmul_groupnorm_leakyrelu_sum.py:15),
// leaky_relu (matmul_groupnorm_leakyrelu_sum.py:15), add (matmul_groupnorm_leakyrelu_sum.py:16)
using BiasGroupNormLeakyReluAdd = kw::Segments<kw::InMemory<LinearGroupNormLeakyReluAdd, float>>;

// a row of 16 elements stays in registers
struct BiasGroupNormLeakyReluAddConfig {
  static constexpr int kVec = 4;
  static constexpr int kLanes = 4;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 64;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

extern "C" int launch_bias_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers) {
  const BiasGroupNormLeakyReluAdd::Args a{
      {
          static_cast<const float*>(tensors[1]),
          static_cast<const float*>(tensors[2]),
          static_cast<const float*>(tensors[3]),
          static_cast<float*>(tensors[4]),
          numbers[0],
      },
      static_cast<const float*>(tensors[0]),
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::resident<BiasGroupNormLeakyReluAdd, BiasGroupNormLeakyReluAddConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 3
extern "C" int launch_fc_product_few_rows(void* const* tensors, const int64_t* numbers) {
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

extern "C" int launch_fc_product_few_rows(void* const* tensors, const int64_t* numbers);
extern "C" int launch_bias_group_norm_leaky_relu_add(void* const* tensors, const int64_t* numbers);

// add at matmul_groupnorm_leakyrelu_sum.py:16.
static void start_linear_group_norm_leaky_relu_add(kw::Run& run, int64_t batch, void* x,
    void* fc_weight, void* fc_bias, void* norm_weight, void* norm_bias, void* add) {
  const kw::Inside inside(run);
  void* const fc_product = run.take(1024*batch);
  run.launch("launch_fc_product_few_rows", launch_fc_product_few_rows, {x, fc_weight, fc_product},
      (batch));
  run.launch("launch_bias_group_norm_leaky_relu_add", launch_bias_group_norm_leaky_relu_add,
      {fc_product, fc_bias, norm_weight, norm_bias, add}, batch);
}

extern "C" int run_forward(void* const* tensors, const int64_t* numbers, int64_t* room) {
  kw::Run run(tensors, 6, numbers + 1);
  void* const x_ = run.given(0);
  void* const fc_weight = run.given(1);
  void* const fc_bias = run.given(2);
  void* const norm_weight = run.given(3);
  void* const norm_bias = run.given(4);
  void* const add = run.given(5);
  const int64_t batch = numbers[0];
  start_linear_group_norm_leaky_relu_add(run, batch, x_, fc_weight, fc_bias, norm_weight,
      norm_bias, add);
  return run.ended(room);
}

}
