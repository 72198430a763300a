// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 1
// linear (linear_sigmoid_linear_logsumexp.py:14), sigmoid (linear_sigmoid_linear_logsumexp.py:14)
struct BiasSigmoid {
  struct Args {
    const float* linear_product;
    const float* linear_bias;
    float* KW_RESTRICT sigmoid_out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 41;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 41;
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
    auto sigmoid_out = kw::store_row<V>(a.sigmoid_out + at.row * 41 + at.element);
    const auto linear_product_in = kw::load_row<V>(a.linear_product + at.row * 41 + at.element);
    const auto linear_bias_in = kw::load_row<V>(a.linear_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      sigmoid_out[v] = kw::sigmoid(linear_product_in[v] + linear_bias_in[v]);
    }
    sigmoid_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// no reduction: a flat grid
struct BiasSigmoidConfig {
  static constexpr int kVec = 1;
  static constexpr int kThreads = 256;
  static constexpr int kChunks = 4;
  static constexpr int kFlat = 0;
};

extern "C" int launch_bias_sigmoid(void* const* tensors, const int64_t* numbers) {
  const BiasSigmoid::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::pointwise<BiasSigmoid, BiasSigmoidConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 1
// linear (linear_sigmoid_linear_logsumexp.py:15), logsumexp (linear_sigmoid_linear_logsumexp.py:15)
struct BiasLogsumexp {
  struct Args {
    const float* second_product;
    const float* second_bias;
    float* logsumexp_kept_out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kMax, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 77;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 77;
  }

  template <int V>
  struct Fields {
    kw::Vec<V> second;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> logsumexp_max;
    kw::Vec<L> logsumexp_shift;
    kw::Vec<L> logsumexp_exp_sum;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::Cursor at) {
    kw::Vec<V> out;
    const auto second_product_in = kw::load_row<V>(a.second_product + at.row * 77 + at.element);
    const auto second_bias_in = kw::load_row<V>(a.second_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.second[v] = second_product_in[v] + second_bias_in[v];
      out[v] = f.second[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.logsumexp_max[l] = total[l];
      s.logsumexp_shift[l] = kw::finite_or_zero(s.logsumexp_max[l]);
    }
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s,
      const Args&, kw::Cursor) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = kw::exp_below(f.second[v] - s.logsumexp_shift[v]);
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.logsumexp_exp_sum[l] = total[l];
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
    auto logsumexp_kept_out = kw::store_row<L>(a.logsumexp_kept_out + at.row);
    KW_LANES
    for (int l = 0; l < L; ++l) {
      logsumexp_kept_out[l] = kw::log(s.logsumexp_exp_sum[l]) + s.logsumexp_shift[l];
    }
    logsumexp_kept_out.commit();
  }
};

// a row of 77 elements stays in registers
struct BiasLogsumexpConfig {
  static constexpr int kVec = 1;
  static constexpr int kLanes = 32;
  static constexpr int kTeams = 1;
  static constexpr int kRows = 8;
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;
};

extern "C" int launch_bias_logsumexp(void* const* tensors, const int64_t* numbers) {
  const BiasLogsumexp::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::resident<BiasLogsumexp, BiasLogsumexpConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }
