// Blocks of elements between memory and registers: kDown x kAcross lanes, of which lane v is at
// v / kAcross down and v % kAcross across. Strides are known to the compiler, which picks vectors
// along the axis whose neighbours are neighbours in memory, if there is one.
#pragma once

#include "storage.cuh"

namespace kw {

// The widest vector of which so many elements are whole ones.
template <class T, int kCount>
KW_FN constexpr int vector_of() {
  int width = 16 / static_cast<int>(sizeof(T));
  while (kCount % width != 0) width /= 2;
  return width;
}

template <int kDown, int kAcross, int64_t kDownStride, int64_t kAcrossStride, class T>
KW_FN Vec<kDown * kAcross> load_block(const T* at) {
  Vec<kDown * kAcross> out;
  if constexpr (kAcrossStride == 1 && kDownStride == kAcross) {  // one run
    constexpr int V = vector_of<T, kDown * kAcross>();
    KW_LANES
    for (int i = 0; i < kDown * kAcross; i += V) {
      const auto part = load_row<V>(at + i);
      KW_LANES
      for (int v = 0; v < V; ++v) out.lanes[i + v] = part[v];
    }
  } else if constexpr (kAcrossStride == 1 && kDownStride != 0) {
    constexpr int V = vector_of<T, kAcross>();
    KW_LANES
    for (int i = 0; i < kDown * kAcross; i += V) {
      const auto part = load_row<V>(at + i / kAcross * kDownStride + i % kAcross);
      KW_LANES
      for (int v = 0; v < V; ++v) out.lanes[i + v] = part[v];
    }
  } else if constexpr (kDownStride == 1 && kAcrossStride != 0) {
    constexpr int V = vector_of<T, kDown>();
    KW_LANES
    for (int c = 0; c < kAcross; ++c) {
      KW_LANES
      for (int d = 0; d < kDown; d += V) {
        const auto part = load_row<V>(at + c * kAcrossStride + d);
        KW_LANES
        for (int v = 0; v < V; ++v) out.lanes[(d + v) * kAcross + c] = part[v];
      }
    }
  } else {  // the same for a whole axis, or scattered
    constexpr int kRows = kDownStride == 0 ? 1 : kDown;
    constexpr int kColumns = kAcrossStride == 0 ? 1 : kAcross;
    float found[kRows * kColumns];
    KW_LANES
    for (int i = 0; i < kRows * kColumns; ++i) {
      found[i] = to_float(at[i / kColumns * kDownStride + i % kColumns * kAcrossStride]);
    }
    KW_LANES
    for (int v = 0; v < kDown * kAcross; ++v) {
      const int d = kRows == 1 ? 0 : v / kAcross;
      const int c = kColumns == 1 ? 0 : v % kAcross;
      out.lanes[v] = found[d * kColumns + c];
    }
  }
  return out;
}

// Lanes on their way to memory, as load_block finds them.
template <int kDown, int kAcross, int64_t kDownStride, int64_t kAcrossStride, class T>
struct BlockOut {
  T* at;
  Vec<kDown * kAcross> lanes;
  KW_FN float& operator[](int v) { return lanes.lanes[v]; }
  KW_FN void commit() const {
    if constexpr (kAcrossStride == 1) {
      constexpr int V = vector_of<T, kDownStride == kAcross ? kDown * kAcross : kAcross>();
      KW_LANES
      for (int i = 0; i < kDown * kAcross; i += V) {
        auto part = store_row<V>(at + i / kAcross * kDownStride + i % kAcross);
        KW_LANES
        for (int v = 0; v < V; ++v) part[v] = lanes.lanes[i + v];
        part.commit();
      }
    } else if constexpr (kDownStride == 1) {
      constexpr int V = vector_of<T, kDown>();
      KW_LANES
      for (int c = 0; c < kAcross; ++c) {
        KW_LANES
        for (int d = 0; d < kDown; d += V) {
          auto part = store_row<V>(at + c * kAcrossStride + d);
          KW_LANES
          for (int v = 0; v < V; ++v) part[v] = lanes.lanes[(d + v) * kAcross + c];
          part.commit();
        }
      }
    } else {
      KW_LANES
      for (int v = 0; v < kDown * kAcross; ++v) {
        at[v / kAcross * kDownStride + v % kAcross * kAcrossStride] = from_float<T>(lanes.lanes[v]);
      }
    }
  }
};

template <int kDown, int kAcross, int64_t kDownStride, int64_t kAcrossStride, class T>
KW_FN BlockOut<kDown, kAcross, kDownStride, kAcrossStride, T> store_block(T* at) {
  return {at, {}};
}

}  // namespace kw
