// Convolutions for check.cu: configurations of each kind, small and awkward, an epilogue that
// stores, one that sums over places, and one that has the largest of all channels.
#pragma once

#include "conv_across.cuh"
#include "conv_rows.cuh"
#include "conv_sm90.cuh"

namespace kw::check {

struct ConvKept {
  static constexpr bool kTurns = false;
  static constexpr bool kInRegisters = false, kAcross = false;
  struct Args {
    float* out;
  };
};

// Every second channel's smallest.
struct ConvTurned : ConvKept {
  static constexpr bool kTurns = true;
  static __device__ __forceinline__ bool turned(const Args&, int channel) {
    return channel % 2 != 0;
  }
};

// 20 to 72 channels of 21 x 19 places, padded, a window of 3 x 3: 16 channels in a stage, weights
// with it, two products on one another.
struct ConvDense {
  static constexpr int kCin = 20, kCout = 72, kGroups = 1, kMerge = 1, kTransposed = 0;
  static constexpr int kInD = 1, kInH = 21, kInW = 19, kOutD = 1, kOutH = 21, kOutW = 19;
  static constexpr int kKernelD = 1, kKernelH = 3, kKernelW = 3;
  static constexpr int kStrideD = 1, kStrideH = 1, kStrideW = 1;
  static constexpr int kPadD = 0, kPadH = 1, kPadW = 1;
  static constexpr int kDilationD = 1, kDilationH = 1, kDilationW = 1;
  static constexpr int kMeanD = 1, kMeanH = 1, kMeanW = 1, kOwnTransposed = 0;
  static constexpr int kOwnKernelD = 1, kOwnKernelH = 3, kOwnKernelW = 3;
  static constexpr int kOwnFirstD = 0, kOwnFirstH = 0, kOwnFirstW = 0;
  static constexpr int kOwnStepD = 1, kOwnStepH = 1, kOwnStepW = 1;
  static constexpr int kPack = 1, kPhaseMax = 0, kPixelsOnM = 0, kAlongX = 0;
  static constexpr int kRows = 8, kBlocksZ = 1, kBlocksY = 1, kBlocksX = 1, kChannels = 128;
  static constexpr int kDeep = 1, kTall = 8, kWide = 8;
  static constexpr int kSplitC = 1, kSplitZ = 1, kSplitY = 2, kSplitX = 1;
  static constexpr int kWindowD = 1, kWindowH = 1, kWindowW = 1;
  static constexpr int kWindowStepD = 1, kWindowStepH = 1, kWindowStepW = 1;
  static constexpr int kWindowPadD = 0, kWindowPadH = 0, kWindowPadW = 0;
  static constexpr int kSeenD = 1, kSeenH = 21, kSeenW = 19;
  static constexpr int kChunks = 2, kStages = 2, kAhead = 4, kResident = 0, kPromote = 4;
  static constexpr int kWeightRing = 0;
  static constexpr int kTileChannels = 8, kTileD = 1, kTileH = 4, kTileW = 8, kTilePitch = 40;
  static constexpr int kEpilogueThreads = 32, kUnscaled = 1;
  static constexpr int kBoxed = 0, kBoxDeep = 1, kBoxTall = 1;
};

// The same of 20 columns, whose rows are fetched in boxes of six.
struct ConvBoxed : ConvDense {
  static constexpr int kInW = 20, kOutW = 20, kSeenW = 20, kBoxed = 1, kBoxTall = 6;
};

// The same in tiles of whole rows of which two are one product, each warpgroup with its own
// channels and their weights.
struct ConvOwn : ConvDense {
  static constexpr int kCout = 128, kInW = 64, kOutW = 62, kSeenW = 62, kPadW = 0;
  static constexpr int kAlongX = 1, kBlocksY = 2, kChannels = 64, kTall = 2, kWide = 62;
  static constexpr int kSplitC = 2, kSplitY = 1, kChunks = 1, kStages = 3, kPromote = 0;
  static constexpr int kWeightRing = 2, kTileH = 2, kTileW = 62, kTilePitch = 136;
  static constexpr int kBoxed = 1, kBoxTall = 2;
};

// The same for what is multiplied as it is in memory.
struct ConvHalves : ConvDense {
  static constexpr int kUnscaled = 0;
};

// The same, and of the results the largest of windows of 2 x 4.
struct ConvWindows : ConvDense {
  static constexpr int kWindowH = 2, kWindowW = 4, kTileH = 2, kTileW = 2, kTilePitch = 8;
  static constexpr int kWindowStepH = 2, kWindowStepW = 4, kSeenH = 10, kSeenW = 4;
};

// The same of windows of 3 x 3 that overlap by a row and a column, and reach beyond all edges.
struct ConvOverlap : ConvDense {
  static constexpr int kWindowH = 3, kWindowW = 3, kWindowStepH = 2, kWindowStepW = 2;
  static constexpr int kWindowPadH = 1, kWindowPadW = 1, kSeenH = 11, kSeenW = 10;
  static constexpr int kTall = 7, kWide = 7, kTileH = 3, kTileW = 3, kTilePitch = 40;
};

// One stage a tile, weights resident, places as rows.
struct ConvPlaces : ConvDense {
  static constexpr int kCin = 10, kCout = 44;
  static constexpr int kPixelsOnM = 1, kChannels = 48, kSplitY = 1, kSplitX = 2;
  static constexpr int kStages = 3, kResident = 1, kPromote = 0;
  static constexpr int kTileChannels = 48, kTileH = 8, kTilePitch = 68;
  static constexpr int kEpilogueThreads = 128;
};

// Every second place, three channels.
struct ConvStrided : ConvPlaces {
  static constexpr int kCin = 3, kPack = 2, kChunks = 1;
  static constexpr int kStrideH = 2, kStrideW = 2, kOutH = 11, kOutW = 10;
  static constexpr int kSeenH = 11, kSeenW = 10;
};

// The same as means of 2 x 2 results of windows of 2 x 2.
struct ConvMeans : ConvStrided {
  static constexpr int kMeanH = 2, kMeanW = 2, kOwnKernelH = 2, kOwnKernelW = 2;
  static constexpr int kOwnFirstH = -1, kOwnFirstW = -1;
};

// Transposed by phases, in two groups.
struct ConvPhases : ConvPlaces {
  static constexpr int kCin = 16, kCout = 32, kGroups = 2, kChannels = 16, kTransposed = 1;
  static constexpr int kOwnTransposed = 1;
  static constexpr int kStrideH = 2, kStrideW = 2, kOutH = 42, kOutW = 38, kUnscaled = 0;
  static constexpr int kSeenH = 42, kSeenW = 38;
  static constexpr int kChunks = 1, kTileChannels = 16, kTileH = 16, kTileW = 16;
  static constexpr int kTilePitch = 260;
};

// The sum of each channel of a slice of configuration C, and all results.
template <class C>
struct ConvTotals {
  struct Args {
    float* out;
    float* totals;
  };
  static constexpr int kStages = 1, kRows = C::kTileChannels, kSegment = 0;
  static constexpr int kElements = C::kTileD * C::kTileH * C::kTileW;
  static constexpr int kVec = 2, kEdgeVec = 1, kLanes = 4, kTeams = 1, kUnroll = 2;
  static constexpr int kPlaceStride = 1, kChannelStride = 0;
  static constexpr bool kTurns = false, kInRegisters = true, kAcross = false;
  static constexpr bool kStoresElements = true, kStoresFirst = false, kStoresSegments = false;
  static constexpr bool kReadsBeside = false;
  static constexpr Combine kCombine[1] = {Combine::kSum};
  static constexpr bool kOverSegment[1] = {false}, kHolds[1] = {false};
  static constexpr Keep kKeep = Keep::kAgain;
  template <int V>
  struct Fields {
    Vec<V> product;
  };
  template <int L>
  struct Scalars {
    Vec<L> total;
  };
  using At = TileCursor;

  KW_FN static int x(const At& at) { return at.x + at.element % C::kTileW; }
  KW_FN static int y(const At& at) { return at.y + at.element / C::kTileW % C::kTileH; }
  KW_FN static int place(const At& at) { return at.row * C::kTilePitch + at.element; }
  KW_FN static int channel(const At& at) { return at.row; }
  KW_FN static bool live(const At&) { return true; }
  KW_FN static bool whole(const At& at) {
    return at.y + C::kTileH <= C::kOutH && at.x + C::kTileW <= C::kOutW &&
           at.channel + C::kTileChannels <= C::kCout;
  }
  KW_FN static bool has_row(const At& at) { return at.channel + at.row < C::kCout; }
  KW_FN static bool has_element(const At& at) { return y(at) < C::kOutH && x(at) < C::kOutW; }
  template <int V>
  KW_FN static void begin(Stage<0>, Fields<V>& f, const Vec<V>& results) {
    f.product = results;
  }
  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args&,
                                   const At&) {
    return f.product;
  }
  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&, const At&) {
    s.total = total;
  }
  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, const At& at) {
    const int64_t row = (at.sample * C::kCout + at.channel + at.row) * C::kOutH + y(at);
    KW_LANES
    for (int v = 0; v < V; ++v) a.out[row * C::kOutW + x(at) + v] = f.product[v];
  }
  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, const At& at) {
    a.totals[at.sample * C::kCout + at.channel + at.row] = s.total[0];
  }
};

// The largest channel of each place of a slice of configuration C.
template <class C>
struct ConvMost {
  struct Args {
    float* most;
  };
  static constexpr int kStages = 1, kRows = C::kTileD * C::kTileH * C::kTileW, kSegment = 0;
  static constexpr int kElements = C::kCout;
  static constexpr int kVec = 1, kEdgeVec = 1, kLanes = 2, kTeams = 1, kUnroll = 2;
  static constexpr int kPlaceStride = C::kTilePitch, kChannelStride = 1;
  static constexpr bool kTurns = false, kInRegisters = false, kAcross = true;
  static constexpr bool kStoresElements = false, kStoresFirst = false, kStoresSegments = false;
  static constexpr bool kReadsBeside = false;
  static constexpr Combine kCombine[1] = {Combine::kMax};
  static constexpr bool kOverSegment[1] = {false}, kHolds[1] = {false};
  static constexpr Keep kKeep = Keep::kAgain;
  template <int V>
  struct Fields {
    Vec<V> product;
  };
  template <int L>
  struct Scalars {
    Vec<L> most;
  };
  using At = TileCursor;

  KW_FN static int x(const At& at) { return at.x + at.row % C::kTileW; }
  KW_FN static int y(const At& at) { return at.y + at.row / C::kTileW % C::kTileH; }
  KW_FN static int place(const At& at) { return at.element * C::kTilePitch + at.row; }
  KW_FN static int channel(const At& at) { return at.element; }
  KW_FN static bool live(const At&) { return true; }
  KW_FN static bool whole(const At& at) {
    return at.y + C::kTileH <= C::kOutH && at.x + C::kTileW <= C::kOutW;
  }
  KW_FN static bool has_row(const At& at) { return y(at) < C::kOutH && x(at) < C::kOutW; }
  KW_FN static bool has_element(const At&) { return true; }
  template <int V>
  KW_FN static void begin(Stage<0>, Fields<V>& f, const Vec<V>& results) {
    f.product = results;
  }
  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args&,
                                   const At&) {
    return f.product;
  }
  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&, const At&) {
    s.most = total;
  }
  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, const At& at) {
    a.most[(at.sample * C::kOutH + y(at)) * C::kOutW + x(at)] = s.most[0];
  }
};

// The largest of the phases.
struct ConvLargest : ConvPhases {
  static constexpr int kPhaseMax = 1, kOutH = 21, kOutW = 19, kTileH = 8, kTileW = 8;
  static constexpr int kSeenH = 21, kSeenW = 19, kTilePitch = 68;
};

}  // namespace kw::check

namespace kw {

template <class C>
struct ConvEpilogue<check::ConvKept, C> {
  const check::ConvKept::Args& a;

  __device__ __forceinline__ void run(const ConvTile<C>& tile, int thread) const {
    constexpr int kPlaces = C::kTileD * C::kTileH * C::kTileW;
    for (int i = thread; i < C::kTileChannels * kPlaces; i += C::kEpilogueThreads) {
      const int channel = tile.channel + i / kPlaces;
      const int z = tile.z + i % kPlaces / (C::kTileW * C::kTileH);
      const int y = tile.y + i / C::kTileW % C::kTileH;
      const int x = tile.x + i % C::kTileW;
      if (channel >= C::kCout || z >= C::kSeenD || y >= C::kSeenH || x >= C::kSeenW) continue;
      const int64_t row = ((tile.sample * C::kCout + channel) * C::kSeenD + z) * C::kSeenH + y;
      const float sum = tile.at[i / kPlaces * C::kTilePitch + i % kPlaces];
      a.out[row * C::kSeenW + x] = sum * tile.scale(i / kPlaces);
    }
  }
};

template <class C>
struct ConvEpilogue<check::ConvTurned, C> : ConvEpilogue<check::ConvKept, C> {};

}  // namespace kw
