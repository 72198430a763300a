// ---- A unit of its own, if need be. Cost: 1
// channels_last (conv2d_min_tanh_tanh.py:13)
struct ChannelsLast {
  struct Args {
    const float* x;
    float* KW_RESTRICT x_last_out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 81;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) {
    return (4*a.batch);
  }
  KW_FN static int64_t elements(const Args&) {
    return 81;
  }

  template <int V>
  struct Fields {
    kw::Tile<V> x_last_tile;
  };
  template <int L>
  struct Scalars {
  };

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& KW_RESTRICT a,
      kw::Cursor at) {
    auto x_last_out = kw::store_across<V, 4, 4>(f.x_last_tile,
        a.x_last_out + (at.row / 4) * 324 + at.row % 4 + at.element * 4, at.row);
    const auto x_in = kw::load_row<V>(a.x + at.row * 81 + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      x_last_out[v] = x_in[v];
    }
    x_last_out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, kw::Cursor) {
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, kw::Cursor) {
  }
};

// neighbours lie along two axes: tiles of both
struct ChannelsLastConfig {
  static constexpr int kVec = 16;
  static constexpr int kRun = 81;
  static constexpr int kAcross = 4;
};

extern "C" int launch_channels_last(void* const* tensors, const int64_t* numbers) {
  const ChannelsLast::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<float*>(tensors[1]),
      numbers[0],
  };
  kw::tiled<ChannelsLast, ChannelsLastConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}

// ---- A unit of its own, if need be. Cost: 1
// conv2d (conv2d_min_tanh_tanh.py:13), min (conv2d_min_tanh_tanh.py:13),
// tanh (conv2d_min_tanh_tanh.py:14)
struct BiasMinTanh {
  struct Args {
    const float* conv_product_last;
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
    const auto conv_product_last_in = kw::load_every<V,
        6>(a.conv_product_last + at.row * 6 + at.element);
    const auto conv_bias_in = kw::load_same<V>(a.conv_bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = conv_product_last_in[v] + conv_bias_in[v];
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
  static constexpr int kVec = 16;
  static constexpr int kRun = 0;
  static constexpr int kLow = 0;
  static constexpr int kHigh = 0;
};

extern "C" int launch_bias_min_tanh(void* const* tensors, const int64_t* numbers) {
  const BiasMinTanh::Args a{
      static_cast<const float*>(tensors[0]),
      static_cast<const float*>(tensors[1]),
      static_cast<float*>(tensors[2]),
      numbers[0],
  };
  kw::short_rows<BiasMinTanh, BiasMinTanhConfig>(a, static_cast<int>(numbers[1]));
  return 0;
}
