// What tiles of sums on the CPU are made of: vectors along one side of the tile, numbers that are
// broadcast along the other, and as many of both as the registers hold.
#pragma once

#include <stdint.h>

namespace kw {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
inline constexpr int kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kLanes = 4;
inline constexpr int kRegisters = 32;
#else
inline constexpr int kLanes = 4;
inline constexpr int kRegisters = 16;
#endif
inline constexpr int kTileVectors = kRegisters == 32 ? 4 : 2;
inline constexpr int64_t kTileWidth = kTileVectors * kLanes;
inline constexpr int kTileRows = 6;

typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef float LanesAnywhere __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline int64_t whole_lanes(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

}  // namespace kw
