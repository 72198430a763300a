// What lies across a tile, on the CPU: blocks of memory that are turned in registers.
//
// Of sixteen neighbouring rows, each lane of a row is beside the same lane of the next one. The
// first of these rows brings all of them, or the last one takes them all to memory: whole vectors
// both ways. Number by number, a vector that is scattered takes four times as long as one that is
// stored (Cascade Lake: 4.0 ms and not 2.1 for 4 x 64 x 96 x 96).
#pragma once

#include <algorithm>
#include <type_traits>

#include "storage.cuh"

namespace kw {

inline constexpr int kTileAcross = 16;

// Numbers along the side of a block; 0: lanes are gathered and scattered one by one.
#if defined(KW_SHUFFLES) && defined(__AVX512F__)
inline constexpr int kTurned = 16;
#elif defined(KW_SHUFFLES) && defined(__AVX__)
inline constexpr int kTurned = 8;
#else
inline constexpr int kTurned = 0;
#endif

template <int V>
struct alignas(64) Tile {
  float rows[kTileAcross][V];
};

template <class T, int V>
inline constexpr bool kTurns =
    kTurned > 0 && V % (kTurned > 0 ? kTurned : 1) == 0 && std::is_same_v<T, float>;

#ifdef KW_SHUFFLES

// Of two rows S apart, the halves of each 2 S numbers that are in each other's place.
template <int W, int S, int... I>
KW_FN void exchange(Packed<W>& upper, Packed<W>& lower, std::integer_sequence<int, I...>) {
  const Packed<W> first = __builtin_shufflevector(upper, lower, (I & S ? W + I - S : I)...);
  lower = __builtin_shufflevector(upper, lower, (I & S ? W + I : I + S)...);
  upper = first;
}

template <int W, int S>
KW_FN void turn(Packed<W> (&rows)[W]) {
  if constexpr (S > 0) {
    for (int i = 0; i < W; ++i) {
      if (!(i & S)) exchange<W, S>(rows[i], rows[i + S], std::make_integer_sequence<int, W>{});
    }
    turn<W, S / 2>(rows);
  }
}

// W rows of W numbers `step` apart, as columns `pitch` apart.
template <int W>
KW_FN void turn_block(const float* from, int64_t step, float* to, int64_t pitch) {
  Packed<W> rows[W];
  for (int i = 0; i < W; ++i) __builtin_memcpy(&rows[i], from + i * step, sizeof rows[i]);
  turn<W, W / 2>(rows);
  for (int i = 0; i < W; ++i) __builtin_memcpy(to + i * pitch, &rows[i], sizeof rows[i]);
}

#else

template <int W>
KW_FN void turn_block(const float* from, int64_t step, float* to, int64_t pitch) {
  for (int i = 0; i < W; ++i) {
    for (int c = 0; c < W; ++c) __builtin_memcpy(to + c * pitch + i, from + i * step + c, 4);
  }
}

#endif

template <int W>
KW_FN void turn_tile(const float* from, int64_t step, float* to, int64_t pitch, int rows,
                     int columns) {
  for (int i = 0; i < rows; i += W) {
    for (int c = 0; c < columns; c += W) {
      turn_block<W>(from + i * step + c, step, to + c * pitch + i, pitch);
    }
  }
}

// Lanes S apart, of which there are A beside each other: for this row, the first of those that a
// tile has together.
template <int V, int64_t S, int64_t A, class T>
KW_FN auto load_across(Tile<V>& tile, const T* at, int64_t row) {
  if constexpr (kTurns<T, V>) {
    const int64_t first = row % A / kTileAcross * kTileAcross;
    const int64_t place = row % A - first;
    const int64_t count = std::min<int64_t>(kTileAcross, A - first);
    if (place == 0 && count == kTileAcross) {
      turn_tile<kTurned>(at, S, tile.rows[0], V, V, kTileAcross);
    } else if (place == 0) {
      for (int64_t k = 0; k < count; ++k) {
        for (int v = 0; v < V; ++v) tile.rows[k][v] = at[v * S + k];
      }
    }
    return Row<T>{tile.rows[place]};
  } else {
    return load_apart<V, S>(at);
  }
}

// Such lanes on their way to memory: the last row of a tile takes them there.
template <int V, int64_t S, int64_t A>
struct AcrossOut {
  Tile<V>& tile;
  float* at;
  int64_t place;
  int64_t count;
  KW_FN float& operator[](int v) const { return tile.rows[place][v]; }
  KW_FN void commit() const {
    if (place != count - 1) return;
    float* const first = at - place;
    if (count == kTileAcross) {
      turn_tile<kTurned>(tile.rows[0], V, first, S, kTileAcross, V);
    } else {
      for (int v = 0; v < V; ++v) {
        for (int64_t k = 0; k < count; ++k) first[v * S + k] = tile.rows[k][v];
      }
    }
  }
};

template <int V, int64_t S, int64_t A, class T>
KW_FN auto store_across(Tile<V>& tile, T* at, int64_t row) {
  if constexpr (kTurns<T, V>) {
    const int64_t first = row % A / kTileAcross * kTileAcross;
    const int64_t count = std::min<int64_t>(kTileAcross, A - first);
    return AcrossOut<V, S, A>{tile, at, row % A - first, count};
  } else {
    return store_strided<V>(at, S);
  }
}

}  // namespace kw
