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
inline constexpr int64_t kDotDepth = 512;  // of the rows that stay in the first-level cache
inline constexpr int64_t kDotAhead = 256;  // numbers of a streamed row that are fetched early

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

// The totals of a tile: of as many rows at once as fill a vector, with the last ones again.
template <int R, int C>
KW_FN void dot_totals(Lanes (&sums)[R][C], float (&totals)[R][C]) {
  constexpr int kRows = std::max(1, std::min(kLanes / C, R >= 4 ? 4 : R >= 2 ? 2 : 1));
#pragma GCC unroll 8
  for (int first = 0; first < R; first += kRows) {
    Lanes some[kRows * C];
#pragma GCC unroll 16
    for (int n = 0; n < kRows * C; ++n) some[n] = sums[std::min(first + n / C, R - 1)][n % C];
    const Lanes found = totals_of<kRows * C>(some);
#pragma GCC unroll 16
    for (int n = 0; n < kRows * C; ++n) {
      if (first + n / C < R) totals[first + n / C][n % C] = found[n];
    }
  }
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
    add([=](const float* from)
            __attribute__((always_inline)) { return load_first(from + whole, rest); });
  }
  float totals[R][C];
  dot_totals<R, C>(sums, totals);
  for (int i = 0; i < R; ++i) {
    for (int j = 0; j < C; ++j) {
      float& to = g.out[(r + i) * g.row + (c + j) * g.column];
      to = totals[i][j] + (k > 0 ? to : g.bias ? g.bias[g.bias_of_few ? r + i : c + j] : 0.0f);
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
