// Products of few rows on the CPU: the vector lies along the depth, and the other side streams
// past.
//
// A tile is some rows by four streamed rows, a sum of lanes for each pair; lanes are added up once
// for so much of the depth. With one to three rows it takes as long as reading the memory does. As
// many sums as there are lanes are accurate, too.
#pragma once

#include "matrix.hpp"

namespace kw {

inline constexpr int kDotRows = kRegisters == 32 ? 6 : 2;
inline constexpr int kDotColumns = 4;
inline constexpr int64_t kDotDepth = 2048;  // of the rows that stay in the first-level cache
inline constexpr int64_t kDotAhead = 256;   // numbers of a streamed row that are fetched early

// Where results go: out(r, c) of few rows and streamed ones, and what is added to it.
struct Dots {
  Matrix few;
  Matrix streamed;
  const float* bias;
  float* out;
  int64_t row;
  int64_t column;
  bool bias_of_few;
  int64_t depth;

  explicit Dots(const Product& g)
      : few(g.left),
        streamed(g.right),
        bias(g.bias),
        out(g.out),
        row(g.right.rows),
        column(1),
        bias_of_few(false),
        depth(g.depth) {
    if (few.rows <= streamed.rows) return;
    std::swap(few, streamed);
    std::swap(row, column);
    bias_of_few = true;
  }
};

// The last lanes of a row whose depth they do not divide: with zeros where they were taken before.
KW_FN Lanes last_lanes(const float* end, int64_t count) {
  Lanes x{};
  for (int64_t i = 0; i < count; ++i) x[kLanes - 1 - i] = end[-1 - i];
  return x;
}

// R rows by C streamed ones over a part of the depth.
template <int R, int C>
inline void dot_tile(const Dots& g, int64_t r, int64_t c, int64_t k, int64_t end) {
  Lanes sums[R][C];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sums[i][j] = Lanes{};
  }
  const float* const x = g.few.at(r, k);
  const float* const w = g.streamed.at(c, k);
  const int64_t whole = (end - k) / kLanes * kLanes;
  const auto add = [&](const auto& take) __attribute__((always_inline)) {
    Lanes b[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) b[j] = take(w + j * g.streamed.row);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Lanes a = take(x + i * g.few.row);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] += a * b[j];
    }
  };
  for (int64_t at = 0; at < whole; at += kLanes) {
    if (r == 0) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) __builtin_prefetch(w + j * g.streamed.row + at + kDotAhead);
    }
    add([at](const float* from) __attribute__((always_inline)) { return load_lanes(from + at); });
  }
  if (const int64_t rest = end - k - whole; rest > 0) {
    add([=](const float* from) { return last_lanes(from + end - k, rest); });
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      float& to = g.out[(r + i) * g.row + (c + j) * g.column];
      const float sum = total_of(sums[i][j]);
      const float before = k > 0 ? to : g.bias ? g.bias[g.bias_of_few ? r + i : c + j] : 0.0f;
      to = before + sum;
    }
  }
}

template <int C, int R = kDotRows>
KW_FN void dot_rows(const Dots& g, int64_t r, int64_t c, int64_t k, int64_t end) {
  if constexpr (R > 0) {
    for (; r + R <= g.few.rows; r += R) dot_tile<R, C>(g, r, c, k, end);
    dot_rows<C, R - 1>(g, r, c, k, end);
  }
}

inline void dots(const Product& product, int threads) {
  const Dots g(product);
  constexpr int64_t kUnit = 16 * kDotColumns;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const Share own(g.streamed.rows, kDotColumns, team_part(), team_parts());
    for (int64_t first = own.begin; first < own.end; first += kUnit) {
      const int64_t last = std::min(first + kUnit, own.end);
      for (int64_t k = 0; k < g.depth; k += kDotDepth) {
        const int64_t end = std::min(k + kDotDepth, g.depth);
        int64_t c = first;
        for (; c + kDotColumns <= last; c += kDotColumns) dot_rows<kDotColumns>(g, 0, c, k, end);
        for (; c < last; ++c) dot_rows<1>(g, 0, c, k, end);
      }
    }
  }
}

}  // namespace kw
