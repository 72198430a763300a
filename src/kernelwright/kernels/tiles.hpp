// Products on the CPU by the processor's vectors: lanes are rows of one side, and numbers of the
// other go to all of them.
//
// The side in lanes is packed, so that they are neighbours: that with fewer rows once for all
// threads, where the other one lies along the depth, and is streamed as it is; else the streamed
// one, block by block. A tile fills the registers with sums over a block of the depth, which are
// added to a total: as accurate as the library's.
#pragma once

#include "matrix.hpp"

namespace kw {

inline constexpr int64_t kTileDepth = 64;
inline constexpr int64_t kTileChunk = 4 * kTileWidth;  // packed rows at once
inline constexpr int64_t kTilePanel = 16 * kTileRows;  // of the other side

// Rows r to r + kTileWidth over numbers k to `end`, as lanes; zeros beyond the last row.
inline void pack_lanes(const Matrix& m, int64_t r, int64_t k, int64_t end, float* to) {
  const int64_t count = std::min(kTileWidth, m.rows - r);
  for (int64_t at = k; at < end; ++at, to += kTileWidth) {
    const float* const from = m.at(r, at);
    if (m.row == 1 && count == kTileWidth) {
      for (int64_t i = 0; i < kTileWidth; ++i) to[i] = from[i];
    } else {
      for (int64_t i = 0; i < kTileWidth; ++i) to[i] = i < count ? from[i * m.row] : 0.0f;
    }
  }
}

// kTileWidth packed rows against B rows of the other side, over some of the depth.
template <int B>
inline void lane_tile(const float* packed, const Matrix& other, int64_t r, int64_t k, int64_t depth,
                      float* totals) {
  Lanes sums[B][kTileVectors];
#pragma GCC unroll 8
  for (int j = 0; j < B; ++j) {
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) sums[j][i] = Lanes{};
  }
  const float* const w = other.at(r, k);
  for (int64_t at = 0; at < depth; ++at, packed += kTileWidth) {
    Lanes x[kTileVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) x[i] = load_lanes(packed + i * kLanes);
#pragma GCC unroll 8
    for (int j = 0; j < B; ++j) {
      const Lanes b = Lanes{} + w[j * other.row + at * other.depth];
#pragma GCC unroll 8
      for (int i = 0; i < kTileVectors; ++i) sums[j][i] += x[i] * b;
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < B; ++j) {
#pragma GCC unroll 8
    for (int i = 0; i < kTileVectors; ++i) {
      float* const to = totals + j * kTileWidth + i * kLanes;
      store_lanes(to, k > 0 ? load_lanes(to) + sums[j][i] : sums[j][i]);
    }
  }
}

template <int B = kTileRows>
KW_FN void lane_tiles(const float* packed, const Matrix& other, int64_t r, int64_t end, int64_t k,
                      int64_t depth, float* totals) {
  if constexpr (B > 0) {
    for (; r + B <= end; r += B, totals += B * kTileWidth) {
      lane_tile<B>(packed, other, r, k, depth, totals);
    }
    lane_tiles<B - 1>(packed, other, r, end, k, depth, totals);
  }
}

class LaneTiles {
 public:
  explicit LaneTiles(const Product& g)
      : g_(g),
        left_is_less_(g.left.rows <= g.right.rows),
        less_(left_is_less_ ? g.left : g.right),
        more_(left_is_less_ ? g.right : g.left),
        packs_less_(more_.depth == 1) {}

  void run(int threads) {
    static thread_local Room kept;
    const int64_t chunk = std::min(kTileChunk, whole(less_.rows));
    if (packs_less_) packed_ = static_cast<float*>(kept.bytes(chunk * g_.depth * 4));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      for (int64_t first = 0; first < less_.rows; first += kTileChunk) {
        const int64_t end = std::min(first + kTileChunk, less_.rows);
        if (packs_less_) {
          const int64_t blocks = (g_.depth + kTileDepth - 1) / kTileDepth;
#pragma omp for collapse(2) schedule(static)
          for (int64_t b = 0; b < blocks; ++b) {
            for (int64_t r = first; r < first + chunk; r += kTileWidth) {
              if (r < end) pack(r, b * kTileDepth, first);
            }
          }
          stream_broadcast(first, end);
        } else {
          stream_lanes(first, end);
        }
#pragma omp barrier
      }
    }
  }

 private:
  static int64_t whole(int64_t rows) { return (rows + kTileWidth - 1) / kTileWidth * kTileWidth; }

  float* place(int64_t r, int64_t k, int64_t first) const {
    return packed_ + (r - first) * g_.depth + k * kTileWidth;
  }

  void pack(int64_t r, int64_t k, int64_t first) const {
    pack_lanes(less_, r, k, std::min(k + kTileDepth, g_.depth), place(r, k, first));
  }

  // The side with more rows number by number, against packed rows `first` to `end`.
  void stream_broadcast(int64_t first, int64_t end) const {
    static thread_local Room kept;
    auto* const totals = static_cast<float*>(kept.bytes(kTilePanel * kTileChunk * 4));
    const Share own(more_.rows, kTileRows, team_part(), team_parts());
    for (int64_t s = own.begin; s < own.end; s += kTilePanel) {
      const int64_t last = std::min(s + kTilePanel, own.end);
      for (int64_t k = 0; k < g_.depth; k += kTileDepth) {
        const int64_t depth = std::min(kTileDepth, g_.depth - k);
        for (int64_t r = first; r < end; r += kTileWidth) {
          lane_tiles(place(r, k, first), more_, s, last, k, depth,
                     totals + (r - first) * kTilePanel);
        }
      }
      for (int64_t r = first; r < end; r += kTileWidth) {
        write(totals + (r - first) * kTilePanel, less_, r, s, last, left_is_less_);
      }
    }
  }

  // The side with more rows in lanes, against rows `first` to `end` number by number.
  void stream_lanes(int64_t first, int64_t end) const {
    static thread_local Room kept;
    auto* const totals =
        static_cast<float*>(kept.bytes((kTileChunk + kTileDepth) * kTileWidth * 4));
    float* const block = totals + kTileChunk * kTileWidth;
    const Share own(more_.rows, kTileWidth, team_part(), team_parts());
    for (int64_t s = own.begin; s < own.end; s += kTileWidth) {
      for (int64_t k = 0; k < g_.depth; k += kTileDepth) {
        const int64_t depth = std::min(kTileDepth, g_.depth - k);
        pack_lanes(more_, s, k, k + depth, block);
        lane_tiles(block, less_, first, end, k, depth, totals);
      }
      write(totals, more_, s, first, end, !left_is_less_);
    }
  }

  // Totals of rows in lanes from r on, and rows `first` to `end` of the other side.
  void write(const float* totals, const Matrix& in_lanes, int64_t r, int64_t first, int64_t end,
             bool lanes_are_left) const {
    const int64_t count = std::min(kTileWidth, in_lanes.rows - r);
    const int64_t columns = g_.right.rows;
    for (int64_t o = first; o < end; ++o, totals += kTileWidth) {
      if (lanes_are_left) {
        const float bias = g_.bias ? g_.bias[o] : 0.0f;
        for (int64_t i = 0; i < count; ++i) g_.out[(r + i) * columns + o] = totals[i] + bias;
      } else {
        float* const to = g_.out + o * columns + r;
        for (int64_t i = 0; i < count; ++i) to[i] = totals[i] + (g_.bias ? g_.bias[r + i] : 0.0f);
      }
    }
  }

  const Product& g_;
  const bool left_is_less_;
  const Matrix less_;
  const Matrix more_;
  const bool packs_less_;
  float* packed_ = nullptr;
};

}  // namespace kw
