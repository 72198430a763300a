// One convolution, compiled for one loop and configuration behind a C function: what convolved.py
// builds, to try kernels/conv_sm90.cuh without a model around it. CONFIG names a file with the
// struct Config, LOOP the main loop, PROGRAM one of the epilogues below.
#include "conv_across.cuh"
#include "conv_rows.cuh"
#include "conv_sm90.cuh"

#include CONFIG

namespace convolved {

// The results as they are.
struct Stored {
  static __device__ __forceinline__ float map(float x, const float*, int) { return x; }
};

// relu(x + bias) + bias.
struct Rectified {
  static __device__ __forceinline__ float map(float x, const float* bias, int channel) {
    const float b = __ldg(bias + channel);
    return kw::relu(x + b) + b;
  }
};

// tanh(x + bias) * 2 + bias.
struct Squashed {
  static __device__ __forceinline__ float map(float x, const float* bias, int channel) {
    const float b = __ldg(bias + channel);
    return kw::tanh(x + b) * 2.0f + b;
  }
};

// Nothing is stored, for measuring the rest.
struct Unstored {
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = false, kAcross = false;
  struct Args {
    OUT* out;
    const float* bias;
    float* moments;
    int64_t batch;
  };
};

template <class Map>
struct Elements {
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = false, kAcross = false;
  struct Args {
    OUT* out;
    const float* bias;
    float* moments;
    int64_t batch;
  };
};

// The sum of each channel of a slice plus its bias, and the squares around their mean, where the
// sums are. As in what is emitted, few channels are few rows, and all that are counted exist.
struct Moments {
  struct Args {
    OUT* out;
    const float* bias;
    float* moments;  // [2][sample][channel][slice]
    int64_t batch;
  };
  static constexpr int kPlaces = Config::kTileD * Config::kTileH * Config::kTileW;
  static constexpr int kStages = 2;
  static constexpr bool kFew = Config::kCout < Config::kTileChannels;
  static constexpr int kRows = kFew ? Config::kCout : Config::kTileChannels;
  static constexpr int kElements = kPlaces;
  static constexpr int kSegment = 0;
  static constexpr int kVec = 1;
  static constexpr int kEdgeVec = 1;
  static constexpr int kLanes = 4;
  static constexpr int kTeams = 1;
  static constexpr int kPlaceStride = 1;
  static constexpr int kChannelStride = 0;
  static constexpr int kUnroll = 2;
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = true, kAcross = false;
  static constexpr bool kStoresElements = false, kStoresFirst = false, kReadsBeside = false;
  static constexpr bool kStoresSegments = false;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kSum, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kHeld = kRows * kLanes % Config::kEpilogueThreads == 0;
  static constexpr kw::Keep kKeep = kHeld ? kw::Keep::kSlice : kw::Keep::kAgain;
  static constexpr bool kHolds[] = {kHeld, false};

  template <int V>
  struct Fields {
    kw::Vec<V> product;
    kw::Vec<V> shifted;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> sum;
    kw::Vec<L> squares;
  };

  KW_FN static int z(const kw::TileCursor& at) {
    return at.z + at.element / (Config::kTileW * Config::kTileH);
  }
  KW_FN static int y(const kw::TileCursor& at) {
    return at.y + at.element / Config::kTileW % Config::kTileH;
  }
  KW_FN static int x(const kw::TileCursor& at) { return at.x + at.element % Config::kTileW; }
  KW_FN static int place(const kw::TileCursor& at) {
    return at.row * Config::kTilePitch + at.element;
  }
  KW_FN static int channel(const kw::TileCursor& at) { return at.row; }
  KW_FN static bool live(const kw::TileCursor&) { return true; }
  KW_FN static bool whole(const kw::TileCursor&) { return false; }
  KW_FN static bool has_row(const kw::TileCursor& at) {
    return kFew || at.channel + at.row < Config::kCout;
  }
  KW_FN static bool has_element(const kw::TileCursor& at) {
    return z(at) < Config::kOutD && y(at) < Config::kOutH && x(at) < Config::kOutW;
  }
  KW_FN static int count(const kw::TileCursor& at) {
    const auto inside = [](int left, int extent) { return left < extent ? left : extent; };
    return inside(Config::kOutD - at.z, Config::kTileD) *
           inside(Config::kOutH - at.y, Config::kTileH) *
           inside(Config::kOutW - at.x, Config::kTileW);
  }

  template <int V>
  KW_FN static void begin(kw::Stage<0>, Fields<V>& f, const kw::Vec<V>& results) {
    f.product = results;
  }
  template <int V>
  KW_FN static void begin(kw::Stage<1>, Fields<V>& f, const kw::Vec<V>& results) {
    f.shifted = results;
  }
  template <int V>
  KW_FN static kw::Vec<V> held(kw::Stage<0>, const Fields<V>& f) {
    return f.shifted;
  }
  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                       const kw::TileCursor& at) {
    const kw::Vec<1> bias = kw::load_constant<V>(a.bias + at.channel + at.row);
    KW_LANES
    for (int v = 0; v < V; ++v) f.shifted[v] = f.product[v] + bias[v];
    return f.shifted;
  }
  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                       const kw::TileCursor& at) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      out[v] = kw::square(f.shifted[v] - s.sum[v] / static_cast<float>(count(at)));
    }
    return out;
  }
  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&,
                           const kw::TileCursor&) {
    s.sum = total;
  }
  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&,
                           const kw::TileCursor&) {
    s.squares = total;
  }
  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a,
                                   const kw::TileCursor& at) {
    constexpr int64_t kChannel = int64_t{Config::kOutD} * Config::kOutH * Config::kOutW;
    const int64_t row = at.sample * Config::kCout + at.channel + at.row;
    a.out[row * kChannel + (int64_t{z(at)} * Config::kOutH + y(at)) * Config::kOutW + x(at)] =
        kw::from_float<OUT>(f.product[0]);
  }
  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, const kw::TileCursor& at) {
    constexpr int kAcross = (Config::kOutW + Config::kTileW - 1) / Config::kTileW;
    constexpr int kDown = (Config::kOutH + Config::kTileH - 1) / Config::kTileH;
    constexpr int kDeep = (Config::kOutD + Config::kTileD - 1) / Config::kTileD;
    const int slice =
        (at.z / Config::kTileD * kDown + at.y / Config::kTileH) * kAcross + at.x / Config::kTileW;
    const int64_t row = at.sample * Config::kCout + at.channel + at.row;
    float* const to = a.moments + row * kDeep * kDown * kAcross + slice;
    to[0] = s.sum[0];
    to[a.batch * Config::kCout * kDeep * kDown * kAcross] = s.squares[0];
  }
};

// The same beside the results.
struct StoredMoments : Moments {
  static constexpr bool kStoresElements = true, kStoresFirst = false, kReadsBeside = false;
  static constexpr kw::Keep kKeep = kw::Keep::kAgain;
  static constexpr bool kHolds[] = {false, false};
};

// The logsumexp of all channels of a place, each plus its bias, where the sums are. They are stored
// as one channel: `out` has [sample][place], and room behind it.
struct LogSumExp {
  struct Args {
    OUT* out;
    const float* bias;
    float* moments;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr int kRows = Config::kTileD * Config::kTileH * Config::kTileW;
  static constexpr int kElements = Config::kCout;
  static constexpr int kSegment = 0;
  static constexpr int kVec = 1;
  static constexpr int kEdgeVec = 1;
  static constexpr int kLanes = 1;
  static constexpr int kTeams = 1;
  static constexpr int kPlaceStride = Config::kTilePitch;
  static constexpr int kChannelStride = 1;
  static constexpr int kUnroll = 2;
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = false, kAcross = true;
  static constexpr bool kStoresElements = false, kStoresFirst = false, kReadsBeside = false;
  static constexpr bool kStoresSegments = false;
  static constexpr kw::Combine kCombine[] = {kw::Combine::kMax, kw::Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr kw::Keep kKeep = kw::Keep::kSlice;
  static constexpr bool kHolds[] = {true, false};

  template <int V>
  struct Fields {
    kw::Vec<V> product;
    kw::Vec<V> shifted;
  };
  template <int L>
  struct Scalars {
    kw::Vec<L> most;
    kw::Vec<L> sum;
  };

  KW_FN static int z(const kw::TileCursor& at) {
    return at.z + at.row / (Config::kTileW * Config::kTileH);
  }
  KW_FN static int y(const kw::TileCursor& at) {
    return at.y + at.row / Config::kTileW % Config::kTileH;
  }
  KW_FN static int x(const kw::TileCursor& at) { return at.x + at.row % Config::kTileW; }
  KW_FN static int place(const kw::TileCursor& at) {
    return at.element * Config::kTilePitch + at.row;
  }
  KW_FN static int channel(const kw::TileCursor& at) { return at.element; }
  KW_FN static bool live(const kw::TileCursor&) { return true; }
  KW_FN static bool whole(const kw::TileCursor&) { return false; }
  KW_FN static bool has_row(const kw::TileCursor& at) {
    return z(at) < Config::kOutD && y(at) < Config::kOutH && x(at) < Config::kOutW;
  }
  KW_FN static bool has_element(const kw::TileCursor&) { return true; }

  template <int V>
  KW_FN static void begin(kw::Stage<0>, Fields<V>& f, const kw::Vec<V>& results) {
    f.product = results;
  }
  template <int V>
  KW_FN static void begin(kw::Stage<1>, Fields<V>& f, const kw::Vec<V>& results) {
    f.shifted = results;
  }
  template <int V>
  KW_FN static kw::Vec<V> held(kw::Stage<0>, const Fields<V>& f) {
    return f.shifted;
  }
  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                       const kw::TileCursor& at) {
    const kw::Vec<1> bias = kw::load_constant<V>(a.bias + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) f.shifted[v] = f.product[v] + bias[v];
    return f.shifted;
  }
  template <int V, int L>
  KW_FN static kw::Vec<V> contribution(kw::Stage<1>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                       const kw::TileCursor&) {
    kw::Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = kw::exp(f.shifted[v] - s.most[v]);
    return out;
  }
  template <int L>
  KW_FN static void finish(kw::Stage<0>, Scalars<L>& s, const kw::Vec<L>& total, const Args&,
                           const kw::TileCursor&) {
    s.most = total;
  }
  template <int L>
  KW_FN static void finish(kw::Stage<1>, Scalars<L>& s, const kw::Vec<L>& total, const Args&,
                           const kw::TileCursor&) {
    s.sum = total;
  }
  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, const kw::TileCursor& at) {
    const int64_t plane = at.sample * Config::kOutD + z(at);
    a.out[(plane * Config::kOutH + y(at)) * Config::kOutW + x(at)] =
        kw::from_float<OUT>(s.most[0] + kw::log(s.sum[0]));
  }
};

}  // namespace convolved

namespace kw {

template <class C>
struct ConvEpilogue<convolved::Unstored, C> {
  const convolved::Unstored::Args& a;

  __device__ __forceinline__ void run(const ConvTile<C>& tile, int thread) const {
    if (tile.at[thread] == 12345.678f) a.out[thread] = from_float<OUT>(1.0f);
  }
};

template <class Map, class C>
struct ConvEpilogue<convolved::Elements<Map>, C> {
  const typename convolved::Elements<Map>::Args& a;

  __device__ __forceinline__ void run(const ConvTile<C>& tile, int thread) const {
    constexpr int kPlaces = C::kTileD * C::kTileH * C::kTileW;
    constexpr int kThreads = C::kEpilogueThreads;
    constexpr int64_t kChannel = int64_t{C::kSeenD} * C::kSeenH * C::kSeenW;
    OUT* const base = a.out + (tile.sample * C::kCout + tile.channel) * kChannel;
#pragma unroll 1
    for (int first = 0; first < kPlaces; first += kThreads) {
      const int place = first + thread;
      const int x = tile.x + place % C::kTileW;
      const int y = tile.y + place / C::kTileW % C::kTileH;
      const int z = tile.z + place / (C::kTileW * C::kTileH);
      if (place >= kPlaces || x >= C::kSeenW || y >= C::kSeenH || z >= C::kSeenD) continue;
      OUT* const to = base + (int64_t{z} * C::kSeenH + y) * C::kSeenW + x;
#pragma unroll 8
      for (int c = 0; c < C::kTileChannels; ++c) {
        if (C::kCout % C::kTileChannels != 0 && tile.channel + c >= C::kCout) break;
        const float value = tile.at[c * C::kTilePitch + place] * tile.scale(c);
        to[c * kChannel] = from_float<OUT>(Map::map(value, a.bias, tile.channel + c));
      }
    }
  }
};

}  // namespace kw

using namespace convolved;

extern "C" int launch(void* const* tensors, int64_t batch, void* stream) {
  const kw::ConvOperands g{tensors[0], tensors[1], tensors[2], tensors[3], batch};
  const PROGRAM::Args a{static_cast<OUT*>(tensors[4]), static_cast<const float*>(tensors[5]),
                        static_cast<float*>(tensors[6]), batch};
  return kw::conv<kw::LOOP, PROGRAM, Config>(g, a, static_cast<cudaStream_t>(stream));
}
