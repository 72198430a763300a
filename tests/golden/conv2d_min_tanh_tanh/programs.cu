// ---- A unit of its own, if need be. Cost: 0
extern "C" const char* cuda_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- A unit of its own, if need be. Cost: 8
// conv2d (conv2d_min_tanh_tanh.py:13), min (conv2d_min_tanh_tanh.py:13),
// tanh (conv2d_min_tanh_tanh.py:14)
struct Conv2dMinTanh {
  struct Args {
    const float* conv_bias;
    float* tanh_2_out;
    int64_t batch;
  };
  static constexpr int kStages = 1;
  static constexpr int kRows = 28;
  static constexpr int kElements = 6;
  static constexpr int kSegment = 0;
  static constexpr int kVec = 2;
  static constexpr int kEdgeVec = 2;
  static constexpr int kLanes = 1;
  static constexpr int kTeams = 1;
  static constexpr int kPlaceStride = 36;
  static constexpr int kChannelStride = 1;
  static constexpr int kUnroll = 4;
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = false;
  static constexpr bool kAcross = true;
  static constexpr bool kReadsBeside = false;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresFirst = false;
  static constexpr bool kStoresSegments = false;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kMin};
  static constexpr bool kOverSegment[] = {false};
  static constexpr kw::Keep kKeep = kw::Keep::kSlice;
  static constexpr bool kHolds[] = {false};

  template <int V>
  struct Fields {
    kw::Vec<V> conv_product;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> min_value_values;
  };

  KW_FN static int place(const kw::TileCursor& at) {
    return at.row + at.element * 36;
  }

  KW_FN static int channel(const kw::TileCursor& at) {
    return at.element;
  }

  KW_FN static bool live(const kw::TileCursor& at) {
    return at.y < 7;
  }

  KW_FN static bool whole(const kw::TileCursor& at) {
    return 3 + at.y < 7;
  }

  KW_FN static bool has_row(const kw::TileCursor& at) {
    return at.y + at.row / 7 < 7;
  }

  KW_FN static bool has_element(const kw::TileCursor&) {
    return true;
  }

  template <int V>
  KW_FN static void begin(kw::Stage<0>, Fields<V>& f, const kw::Vec<V>& results) {
    f.conv_product = results;
  }

  template <int V>
  KW_FN static void begin(kw::Stage<1>, Fields<V>&, const kw::Vec<V>&) {
  }

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&,
      const Args& a, kw::TileCursor at) {
    kw::Vec<V> out;
    const auto conv_bias_in = kw::load_row<V>(kw::element_at(a.conv_bias, at.element));
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = f.conv_product[v] + conv_bias_in[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&,
      const kw::TileCursor&) {
    KW_LANES
    for (int l = 0; l < L; ++l) {
      s.min_value_values[l] = total[l];
    }
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args&, kw::TileCursor) {
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::TileCursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, kw::TileCursor at) {
    auto tanh_2_out = kw::store_away<L>(kw::element_at(a.tanh_2_out, at.sample * 49,
        at.y * 7 + at.row));
    KW_LANES
    for (int l = 0; l < L; ++l) {
      tanh_2_out[l] = kw::tanh(kw::tanh(s.min_value_values[l]));
    }
    tanh_2_out.commit();
  }
};

// 8 channels of 1 x 16 x 8 places, places as rows, 8 channels a stage, weights resident; 4 stages,
// 31 KB, bound by feeding
struct Conv2dMinTanhConfig {
  static constexpr int kCin = 4;
  static constexpr int kCout = 6;
  static constexpr int kGroups = 1;
  static constexpr int kMerge = 1;
  static constexpr int kInD = 1;
  static constexpr int kInH = 9;
  static constexpr int kInW = 9;
  static constexpr int kOutD = 1;
  static constexpr int kOutH = 7;
  static constexpr int kOutW = 7;
  static constexpr int kKernelD = 1;
  static constexpr int kKernelH = 3;
  static constexpr int kKernelW = 3;
  static constexpr int kStrideD = 1;
  static constexpr int kStrideH = 1;
  static constexpr int kStrideW = 1;
  static constexpr int kPadD = 0;
  static constexpr int kPadH = 0;
  static constexpr int kPadW = 0;
  static constexpr int kDilationD = 1;
  static constexpr int kDilationH = 1;
  static constexpr int kDilationW = 1;
  static constexpr int kMeanD = 1;
  static constexpr int kMeanH = 1;
  static constexpr int kMeanW = 1;
  static constexpr int kOwnKernelD = 1;
  static constexpr int kOwnKernelH = 3;
  static constexpr int kOwnKernelW = 3;
  static constexpr int kOwnFirstD = 0;
  static constexpr int kOwnFirstH = 0;
  static constexpr int kOwnFirstW = 0;
  static constexpr int kOwnStepD = 1;
  static constexpr int kOwnStepH = 1;
  static constexpr int kOwnStepW = 1;
  static constexpr int kWindowD = 1;
  static constexpr int kWindowH = 1;
  static constexpr int kWindowW = 1;
  static constexpr int kWindowStepD = 1;
  static constexpr int kWindowStepH = 1;
  static constexpr int kWindowStepW = 1;
  static constexpr int kWindowPadD = 0;
  static constexpr int kWindowPadH = 0;
  static constexpr int kWindowPadW = 0;
  static constexpr int kSeenD = 1;
  static constexpr int kSeenH = 7;
  static constexpr int kSeenW = 7;
  static constexpr int kTransposed = 0;
  static constexpr int kOwnTransposed = 0;
  static constexpr int kPack = 2;
  static constexpr int kPhaseMax = 0;
  static constexpr int kPixelsOnM = 1;
  static constexpr int kRows = 8;
  static constexpr int kAlongX = 0;
  static constexpr int kBlocksZ = 1;
  static constexpr int kBlocksY = 1;
  static constexpr int kBlocksX = 1;
  static constexpr int kChannels = 8;
  static constexpr int kDeep = 1;
  static constexpr int kTall = 4;
  static constexpr int kWide = 7;
  static constexpr int kSplitC = 1;
  static constexpr int kSplitZ = 1;
  static constexpr int kSplitY = 2;
  static constexpr int kSplitX = 1;
  static constexpr int kChunks = 1;
  static constexpr int kStages = 4;
  static constexpr int kAhead = 4;
  static constexpr int kBoxed = 0;
  static constexpr int kBoxDeep = 1;
  static constexpr int kBoxTall = 1;
  static constexpr int kResident = 1;
  static constexpr int kWeightRing = 0;
  static constexpr int kPromote = 0;
  static constexpr int kTileChannels = 8;
  static constexpr int kTileD = 1;
  static constexpr int kTileH = 4;
  static constexpr int kTileW = 7;
  static constexpr int kTilePitch = 36;
  static constexpr int kEpilogueThreads = 128;
  static constexpr int kUnscaled = 1;
};

extern "C" int launch_conv2d_min_tanh(void* const* tensors, const int64_t* numbers) {
  const Conv2dMinTanh::Args a{
      static_cast<const float*>(tensors[4]),
      static_cast<float*>(tensors[5]),
      numbers[0],
  };
  const kw::ConvOperands g{tensors[0], tensors[1], tensors[2], tensors[3], (a.batch),
      numbers[1] != 0};
  const kw::DeviceGuard guard(static_cast<int>(numbers[2]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[3]);
  return kw::conv<kw::ConvSplitFloat, Conv2dMinTanh, Conv2dMinTanhConfig>(g, a, on);
}

// ---- A unit of its own, if need be. Cost: 1
// conv2d (conv2d_min_tanh_tanh.py:13), min (conv2d_min_tanh_tanh.py:13),
// tanh (conv2d_min_tanh_tanh.py:14)
struct BiasMinTanh {
  struct Args {
    const float* conv_product;
    const float* conv_bias;
    float* tanh_2_out;
    int64_t batch;
  };
  static constexpr int kStages = 1;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kMin};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 6;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (49*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 6;
  }

  template <int V>
  struct Fields {
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> min_value_values;
  };

  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>&, const Scalars<L>&, const Args& a,
      kw::Cursor at) {
    kw::Vec<V> out;
    const auto conv_product_in =
        kw::load_row<V>(a.conv_product + (at.row / 49) * 294 + at.row % 49 + at.element * 49);
    const auto conv_bias_in = kw::load_same<V>(a.conv_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = conv_product_in[v] + conv_bias_in[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&) {
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
    auto tanh_2_out = kw::store_row<L>(a.tanh_2_out + at.row);
    KW_LANES
    for (int l = 0; l < L; ++l) {
      tanh_2_out[l] = kw::tanh(kw::tanh(s.min_value_values[l]));
    }
    tanh_2_out.commit();
  }
};

// neighbours in memory belong to different rows
struct BiasMinTanhConfig {
  static constexpr int kVec = 1;
  static constexpr int kWidth = 128;
  static constexpr int kDepth = 1;
  static constexpr int kThreads = 128;
};

extern "C" int launch_bias_min_tanh(void* const* tensors, const int64_t* numbers) {
  const BiasMinTanh::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  const kw::DeviceGuard guard(static_cast<int>(numbers[1]));
  const auto on = reinterpret_cast<cudaStream_t>(numbers[2]);
  return kw::strided<BiasMinTanh, BiasMinTanhConfig>(a, on);
}

// ---- A unit of its own, if need be. Cost: 1
extern "C" void watch_launches(void (*watcher)(const char* name)) { kw::watcher = watcher; }
extern "C" const char* last_launch() { return kw::last_launch; }
