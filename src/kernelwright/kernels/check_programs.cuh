// Small programs, written by hand to the contract in program.cuh, for check.cu and check.cpp.
#pragma once

#include "block.cuh"
#include "boxes.cuh"
#include "half.cuh"

namespace kw {
namespace check {

// out = scale * sigmoid(x), float16 in and out: no stage at all.
struct ScaledSigmoid {
  struct Args {
    const half_t* x;
    const float* scale;
    half_t* out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr Combine kCombine[] = {Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 0;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args&) { return 1; }
  KW_FN static int64_t elements(const Args& a) { return a.batch * 64; }

  template <int V>
  struct Fields {};
  template <int L>
  struct Scalars {};

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args& a, Cursor at) {
    const auto x = load_row<V>(a.x + at.element);
    const auto scale = load_same<V>(a.scale);
    auto out = kw::store_row<V>(a.out + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = scale[v] * sigmoid(x[v]);
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}
  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, Cursor) {}
};

// Softmax over rows of 72, and the sum of the exponentials of each row.
struct Softmax {
  struct Args {
    const float* x;
    float* out;
    bfloat16_t* sum;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr Combine kCombine[] = {Combine::kMax, Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 72;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return kElements; }

  template <int V>
  struct Fields {
    Vec<V> x;
    Vec<V> power;
  };
  template <int L>
  struct Scalars {
    Vec<L> max;
    Vec<L> sum;
  };

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                   Cursor at) {
    Vec<V> out;
    const auto x = load_row<V>(a.x + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.x[v] = x[v];
      out[v] = f.x[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.max[l] = total[l];
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<1>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                   Cursor) {
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.power[v] = exp(f.x[v] - s.max[v]);
      out[v] = f.power[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<1>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.sum[l] = total[l];
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<V>(a.out + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.power[v] / s.sum[v];
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<L>(a.sum + at.row);
    for (int l = 0; l < L; ++l) out[l] = s.sum[l];
    out.commit();
  }
};

// Rows of 72 in twelve segments of 6: the sum of each segment, and the largest element's distance
// from its segment's sum over the row. Stores at all three levels.
struct GroupSpread {
  struct Args {
    const float* x;
    const bool* mask;
    float* scaled;
    float* sums;
    float* largest;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr Combine kCombine[] = {Combine::kSum, Combine::kMax};
  static constexpr bool kOverSegment[] = {true, false};
  static constexpr int kSegment = 6;
  static constexpr int kElements = 72;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = true;
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return kElements; }

  template <int V>
  struct Fields {
    Vec<V> x;
  };
  template <int L>
  struct Scalars {
    Vec<L> sum;
    Vec<L> largest;
  };

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                   Cursor at) {
    Vec<V> out;
    const auto x = load_row<V>(a.x + at.row * kElements + at.element);
    const auto mask = load_row<V>(a.mask + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.x[v] = where(mask[v], x[v], 0.0f);
      out[v] = f.x[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.sum[l] = total[l];
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<1>, Fields<V>& f, const Scalars<L>& s, const Args&,
                                   Cursor) {
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = abs(f.x[v] - s.sum[v]);
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<1>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.largest[l] = total[l];
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<V>(a.scaled + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.x[v] / s.largest[v];
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<L>(a.sums + at.row * 12 + at.element / kSegment);
    for (int l = 0; l < L; ++l) out[l] = s.sum[l];
    out.commit();
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<L>(a.largest + at.row);
    for (int l = 0; l < L; ++l) out[l] = s.largest[l];
    out.commit();
  }
};

// What is left of rows of 72 without their means.
struct Centred {
  struct Args {
    const float* x;
    float* out;
    int64_t batch;
  };
  static constexpr int kStages = 1;
  static constexpr Combine kCombine[] = {Combine::kSum};
  static constexpr bool kOverSegment[] = {false};
  static constexpr bool kCentre[] = {true};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 72;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return kElements; }

  template <int V>
  struct Fields {
    Vec<V> x;
  };
  template <int L>
  struct Scalars {
    Vec<L> mean;
  };

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                   Cursor at) {
    const auto x = load_row<V>(a.x + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) f.x[v] = x[v];
    return f.x;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L, double>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.mean[l] = static_cast<float>(total[l] * (1.0 / kElements));
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<V>(a.out + at.row * kElements + at.element);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.x[v] - s.mean[v];
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}
  template <int L>
  KW_FN static void store_row(const Scalars<L>&, const Args&, Cursor) {}
};

// The mean over the batch of each of 50 columns and the least element in one reading, and what is
// left of every element without the mean.
struct ColumnStatistics {
  struct Args {
    const float* x;
    float* centred;
    float* mean;
    float* least;
    int64_t batch;
  };
  static constexpr int kColumns = 50;
  static constexpr int kStages = 2;
  static constexpr Combine kCombine[] = {Combine::kSum, Combine::kMin};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr bool kCentre[] = {true, false};
  static constexpr bool kSameReading[] = {false, true};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 0;
  static constexpr bool kStoresElements = true;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args&) { return kColumns; }
  KW_FN static int64_t elements(const Args& a) { return a.batch; }

  template <int V>
  struct Fields {
    Vec<V> x;
  };
  template <int L>
  struct Scalars {
    Vec<L> mean;
    Vec<L> least;
  };

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<0>, Fields<V>& f, const Scalars<L>&, const Args& a,
                                   Cursor at) {
    Vec<V> out;
    const auto x = load_row<V>(a.x + at.row + at.element * kColumns);
    KW_LANES
    for (int v = 0; v < V; ++v) {
      f.x[v] = x[v];
      out[v] = f.x[v];
    }
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L, double>& total, const Args& a) {
    for (int l = 0; l < L; ++l) {
      s.mean[l] = static_cast<float>(total[l] / static_cast<double>(a.batch));
    }
  }

  template <int V, int L>
  KW_FN static Vec<V> contribution(Stage<1>, Fields<V>& f, const Scalars<L>&, const Args&, Cursor) {
    return f.x;
  }

  template <int L>
  KW_FN static void finish(Stage<1>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    s.least = total;
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>& f, const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<V>(a.centred + at.row + at.element * kColumns);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = f.x[v] - s.mean[v];
    out.commit();
  }

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    auto mean = kw::store_row<L>(a.mean + at.row);
    for (int l = 0; l < L; ++l) mean[l] = s.mean[l];
    mean.commit();
    auto least = kw::store_row<L>(a.least + at.row);
    for (int l = 0; l < L; ++l) least[l] = s.least[l];
    least.commit();
  }
};

// The largest elements of nine windows of 11 by 14, in images of 13 by 16, as for pictures.cuh.
struct NearlyAll {
  struct Args {
    const float* x;
    float* out;
    int64_t batch;
  };
  static constexpr int kStages = 1;
  static constexpr Combine kCombine[] = {Combine::kMax};
  static constexpr bool kOverSegment[] = {false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 154;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) { return a.batch * 9; }
  KW_FN static int64_t elements(const Args&) { return 154; }
  static constexpr Axis kAxes[] = {{3, 3, 11, 1, 1}, {3, 3, 14, 1, 1}};
  static constexpr bool kWeighs[] = {false};
  struct Picture {};
  template <int L>
  struct Scalars {
    Vec<L> largest;
  };

  KW_FN static Picture picture(const Args&, const Spot<2>&) { return {}; }

  template <int V>
  KW_FN static Vec<V> seen(Stage<0>, const Args& a, const Picture&, const Spot<2>& at) {
    const auto row = load_row<V>(a.x + at.picture * 208 + at.from[0] * 16 + at.from[1]);
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = row[v];
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    s.largest = total;
  }

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    a.out[at.row] = s.largest[0];
  }
};

// Sums of 3x3 windows around every second place of images of 13 by 16, weighed, and scaled by the
// largest element of each; a thread takes two windows below each other by four, as for windows.cuh.
struct PaddedSum {
  struct Args {
    const float* x;
    const float* weight;
    float* out;
    int64_t batch;
  };
  static constexpr int kStages = 2;
  static constexpr Combine kCombine[] = {Combine::kMax, Combine::kSum};
  static constexpr bool kOverSegment[] = {false, false};
  static constexpr int kSegment = 0;
  static constexpr int kElements = 9;
  static constexpr bool kStoresElements = false;
  static constexpr bool kStoresSegments = false;
  KW_FN static int64_t rows(const Args& a) { return a.batch * 7 * 8; }
  KW_FN static int64_t elements(const Args&) { return 9; }
  static constexpr Axis kAxes[] = {{7, 2, 3, 2, 1}, {8, 4, 3, 2, 1}};
  static constexpr int kBeside = 1;
  static constexpr bool kDoubts = true;
  static constexpr bool kWeighs[] = {false, true};
  struct Picture {};

  template <int V>
  struct Fields {};
  template <int L>
  struct Scalars {
    Vec<L> largest;
    Vec<L> sum;
  };

  KW_FN static Picture picture(const Args&, const Spot<2>&) { return {}; }

  template <int V>
  KW_FN static Vec<V> padded(const Args& a, const Spot<2>& at, float beyond) {
    const int down = -1 + at.from[0] + at.by[0], across = -1 + at.from[1] + at.by[1];
    const bool inside = down >= 0 && down < 13 && across >= 0 && across < 16;
    return load_where<V>(
        a.x + -17 + at.picture * 208 + at.from[0] * 16 + at.from[1] + at.by[0] * 16 + at.by[1],
        inside, beyond);
  }

  template <int V>
  KW_FN static Vec<V> seen(Stage<0>, const Args& a, const Picture&, const Spot<2>& at) {
    return padded<V>(a, at, -detail::kInf);
  }

  template <int V>
  KW_FN static Vec<V> seen(Stage<1>, const Args& a, const Picture&, const Spot<2>& at) {
    return padded<V>(a, at, 0.0f);
  }

  template <int V, int L>
  KW_FN static Vec<V> weigh(Stage<1>, const Vec<V>& seen, const Scalars<L>&, const Args& a,
                            Cursor at) {
    const auto weight = load_same<V>(a.weight + at.element);
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = seen[v] * weight[v];
    return out;
  }

  template <int I, int V, int L>
  KW_FN static Vec<V> contribution(Stage<I>, Fields<V>&, const Scalars<L>&, const Args& a,
                                   Cursor at) {
    Vec<V> out;
    const int64_t down = -1 + at.row / 8 % 7 * 2 + at.element / 3;
    const bool inside = down >= 0 && down < 13;
    const auto across = static_cast<int>(-1 + at.row % 8 * 2 + at.element % 3);
    const Within inside_2{across, 2, 0, 16};
    const auto x =
        load_inside<V>(a.x + at.row / 56 * 208 + down * 16 + across, 2, inside, inside_2);
    const float weight = I == 0 ? 1.0f : a.weight[at.element];
    const float beyond = I == 0 ? -detail::kInf : 0.0f;
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = inside && inside_2[v] ? x[v] * weight : beyond;
    return out;
  }

  template <int L>
  KW_FN static void finish(Stage<0>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.largest[l] = total[l];
  }

  template <int L>
  KW_FN static void finish(Stage<1>, Scalars<L>& s, const Vec<L>& total, const Args&) {
    for (int l = 0; l < L; ++l) s.sum[l] = total[l];
  }

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_segment(const Scalars<L>&, const Args&, Cursor) {}

  template <int L>
  KW_FN static void store_row(const Scalars<L>& s, const Args& a, Cursor at) {
    auto out = kw::store_row<L>(a.out + at.row);
    for (int l = 0; l < L; ++l) out[l] = s.sum[l] * s.largest[l];
    out.commit();
  }
};

#ifdef __CUDACC__

// out = relu(x + bias): x has its 24 channels last and its batch x 12 x 12 places first, out the
// other way round.
struct ChannelsFirst {
  struct Args {
    const half_t* x;
    const float* bias;
    float* out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr int kSegment = 24;
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return 144 * 24; }

  template <int V>
  struct Fields {};
  template <int L>
  struct Scalars {};

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args& a, Cursor at) {
    auto out = store_block<4, 4, 1, 144>(a.out + at.row * 3456 + at.element / 24 +
                                         (at.element % 24) * 144);
    const auto x = load_block<4, 4, 24, 1>(a.x + at.row * 3456 + at.element);
    const auto bias = load_block<4, 4, 0, 1>(a.bias + at.element % 24);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = relu(x[v] + bias[v]);
    out.commit();
  }
};

// The other way: three channels first become the last ones, so that a block is one run.
struct PixelsOfThree {
  struct Args {
    const float* x;
    float* out;
    int64_t batch;
  };
  static constexpr int kStages = 0;
  static constexpr int kSegment = 3;
  KW_FN static int64_t rows(const Args& a) { return a.batch; }
  KW_FN static int64_t elements(const Args&) { return 64 * 3; }

  template <int V>
  struct Fields {};
  template <int L>
  struct Scalars {};

  template <int V, int L>
  KW_FN static void store_elements(Fields<V>&, const Scalars<L>&, const Args& a, Cursor at) {
    auto out = store_block<4, 3, 3, 1>(a.out + at.row * 192 + at.element);
    const auto x =
        load_block<4, 3, 1, 64>(a.x + at.row * 192 + at.element / 3 + (at.element % 3) * 64);
    KW_LANES
    for (int v = 0; v < V; ++v) out[v] = x[v];
    out.commit();
  }
};

#endif

}  // namespace check
}  // namespace kw
