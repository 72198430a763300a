// What tiles of sums on the CPU are made of: vectors along one side of the tile, numbers that are
// broadcast along the other, and as many of both as the registers hold.
#pragma once

#include <stdint.h>

namespace kw {

#if defined(__AVX512F__)
inline constexpr int kTileLanes = 16;
inline constexpr int kTileVectors = 4;
#elif defined(__AVX2__)
inline constexpr int kTileLanes = 8;
inline constexpr int kTileVectors = 2;
#elif defined(__aarch64__)
inline constexpr int kTileLanes = 4;
inline constexpr int kTileVectors = 4;
#else
inline constexpr int kTileLanes = 4;
inline constexpr int kTileVectors = 2;
#endif
inline constexpr int kTileWidth = kTileVectors * kTileLanes;
inline constexpr int kTileRows = 6;

struct TileLanes {
  typedef float type __attribute__((vector_size(kTileLanes * sizeof(float))));
  typedef float anywhere
      __attribute__((vector_size(kTileLanes * sizeof(float)), aligned(sizeof(float)), may_alias));
};

inline int64_t whole_lanes(int64_t n) {
  return (n + kTileLanes - 1) / kTileLanes * kTileLanes;
}

}  // namespace kw
