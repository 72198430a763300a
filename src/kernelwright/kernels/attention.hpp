// Attention on the CPU: a product, a softmax over any expression of it, and a product with the
// result, as one kernel whose scores are in the nearest caches alone.
//
// A thread takes blocks of queries of a head. Keys lie along vectors for the first product, so that
// a query's scores are a row as every program walks it, and features do for the second one; queries
// and weights are broadcast. Keys and values of a head are packed when its first block comes:
// whatever order they have in memory, a tile reads neighbours.
//
// S and P are programs as in program.cuh, without a loop nest:
//   S::begin(fields, product), S::contribution(Stage<0>, fields, scalars, args, at)   the scores
//   S::weight(largest, sum)         what a row of exponentials is multiplied by
//   P::begin(fields, product), P::store_elements(fields, scalars, args, at)           the results
// A row is a query, counted over all heads; an element is a key for S and a feature for P.
#pragma once

#include <string.h>

#include "chunks.hpp"
#include "tile.hpp"

namespace kw {

struct Batch {
  int outer;
  int inner;
};

// A matrix of a batch of them: `outer`, `inner`, `row` and `depth` are strides.
struct Operand {
  const void* at;
  int64_t outer;
  int64_t inner;
  int64_t row;
  int64_t depth;

  const float* matrix(const Batch& batch, int64_t head) const {
    return static_cast<const float*>(at) + head / batch.inner * outer + head % batch.inner * inner;
  }
};

// Rows of `value`, as those of any right operand, are columns of the result, its depth are keys.
struct AttentionOperands {
  Operand query;
  Operand key;
  Operand value;
  Batch batch;
  int rows;
};

namespace attention {

// Queries of a block, and keys whose packed tile stays in the first-level cache meanwhile.
inline constexpr int64_t kQueries = 4 * kTileRows;
inline constexpr int64_t kKeysAtOnce = 64;
// Products for which it pays to wake another thread.
inline constexpr int64_t kWorthWaking = 100000;

// R rows of a left operand, by its strides, times `depth` packed rows of P vectors.
template <int R, int P>
void multiply(const float* left, int64_t row, int64_t step, const float* right, int64_t pitch,
              int64_t depth, bool more, float* out, int64_t across) {
  Lanes sum[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) sum[r][p] = Lanes{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Lanes seen[P];
    for (int p = 0; p < P; ++p) {
      seen[p] = *reinterpret_cast<const LanesAnywhere*>(right + k * pitch + p * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      const float x = left[r * row + k * step];
      for (int p = 0; p < P; ++p) sum[r][p] += seen[p] * x;
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      // No reference: a deduced type would not have the alignment of LanesAnywhere.
      LanesAnywhere* const to = reinterpret_cast<LanesAnywhere*>(out + r * across + p * kLanes);
      *to = more ? *to + sum[r][p] : sum[r][p];
    }
  }
}

typedef void (*Multiply)(const float*, int64_t, int64_t, const float*, int64_t, int64_t, bool,
                         float*, int64_t);

template <int P>
Multiply multiply_of(int64_t rows) {
  constexpr Multiply kTiles[] = {multiply<1, P>, multiply<2, P>, multiply<3, P>,
                                 multiply<4, P>, multiply<5, P>, multiply<6, P>};
  return kTiles[rows - 1];
}

// The same for any number of rows and columns, which are whole vectors.
inline void multiply_all(const float* left, int64_t row, int64_t step, const float* right,
                         int64_t pitch, int64_t rows, int64_t columns, int64_t depth, bool more,
                         float* out, int64_t across) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const int64_t some = std::min<int64_t>(kTileRows, rows - r);
    const float* x = left + r * row;
    for (int64_t c = 0; c < columns;) {
      const int64_t vectors = (columns - c) / kLanes;
      float* to = out + r * across + c;
      if (vectors >= kTileVectors) {
        multiply_of<kTileVectors>(some)(x, row, step, right + c, pitch, depth, more, to, across);
        c += kTileWidth;
      } else if (vectors >= 2) {
        multiply_of<2>(some)(x, row, step, right + c, pitch, depth, more, to, across);
        c += 2 * kLanes;
      } else {
        multiply_of<1>(some)(x, row, step, right + c, pitch, depth, more, to, across);
        c += kLanes;
      }
    }
  }
}

// [down][across] of a matrix by its strides, each row filled up with zeros.
inline void pack(const float* from, int64_t down_stride, int64_t across_stride, int64_t down,
                 int64_t across, int64_t pitch, float* to) {
  for (int64_t i = 0; i < down; ++i) {
    const float* row = from + i * down_stride;
    float* out = to + i * pitch;
    if (across_stride == 1) {
      memcpy(out, row, across * sizeof(float));
    } else {
      for (int64_t j = 0; j < across; ++j) out[j] = row[j * across_stride];
    }
    memset(out + across, 0, (pitch - across) * sizeof(float));
  }
}

}  // namespace attention

// What a thread works with: keys and values of a head, scores and results of a block.
template <class C>
struct AttentionRoom {
  static constexpr int64_t kKeys = (C::kAllKeys + kLanes - 1) / kLanes * kLanes;
  static constexpr int64_t kColumns = (C::kColumns + kLanes - 1) / kLanes * kLanes;
  static constexpr int64_t kKeyRoom = C::kDepth * kKeys;
  static constexpr int64_t kValueRoom = C::kAllKeys * kColumns;
  static constexpr int64_t kScoreRoom = attention::kQueries * kKeys;
  static constexpr int64_t kAll =
      kKeyRoom + kValueRoom + kScoreRoom + attention::kQueries * kColumns;

  float* const keys = new float[kAll];
  float* const values = keys + kKeyRoom;
  float* const scores = values + kValueRoom;
  float* const results = scores + kScoreRoom;
  int64_t head = -1;

  AttentionRoom() = default;
  AttentionRoom(const AttentionRoom&) = delete;
  ~AttentionRoom() { delete[] keys; }

  void take(const AttentionOperands& g, int64_t wanted) {
    if (head == wanted) return;
    head = wanted;
    attention::pack(g.key.matrix(g.batch, head), g.key.depth, g.key.row, C::kDepth, C::kAllKeys,
                    kKeys, keys);
    attention::pack(g.value.matrix(g.batch, head), g.value.depth, g.value.row, C::kAllKeys,
                    C::kColumns, kColumns, values);
  }
};

// The scores of a query as its program has them, then as weights, up to the last key it looks at.
template <class S, class C>
KW_FN void weigh(const typename S::Args& args, int64_t row, int64_t keys, float* scores) {
  constexpr int V = C::kVec;
  constexpr int64_t kRun = C::kRun ? C::kRun : C::kAllKeys;
  const typename S::template Scalars<1> s{};
  Vec<V> most = identities<Combine::kMax, V>();
  float rest = identity<Combine::kMax>();
  for_each_chunk<V, C::kRun>(0, keys, kRun, [&](auto lanes, int64_t, int64_t e) KW_INLINE {
    constexpr int W = decltype(lanes)::value;
    typename S::template Fields<W> f;
    Vec<W> x;
    for (int v = 0; v < W; ++v) x.lanes[v] = scores[e + v];
    S::begin(f, x);
    x = S::contribution(Stage<0>{}, f, s, args, Cursor{row, e});
    for (int v = 0; v < W; ++v) scores[e + v] = x.lanes[v];
    if constexpr (W == V) {
      accumulate<Combine::kMax, V>(most, x);
    } else {
      rest = combine<Combine::kMax>(rest, combine_lanes<Combine::kMax>(x));
    }
  });
  const float largest = combine<Combine::kMax>(rest, combine_lanes<Combine::kMax>(most));
  const float shift = finite_or_zero(largest);
  const int64_t whole = whole_lanes(keys);
  for (int64_t k = keys; k < whole; ++k) scores[k] = -detail::kInf;
  Vec<kLanes> total = identities<Combine::kSum, kLanes>();
  for (int64_t k = 0; k < whole; k += kLanes) {
    KW_LANES
    for (int v = 0; v < kLanes; ++v) {
      const float power = exp_below(scores[k + v] - shift);
      scores[k + v] = power;
      total.lanes[v] += power;
    }
  }
  const float weight = S::weight(largest, combine_lanes<Combine::kSum>(total));
  KW_LANES
  for (int64_t k = 0; k < whole; ++k) scores[k] *= weight;
}

// Queries [first, last) of a head, at most kQueries.
template <class S, class P, class C>
inline void attend_block(const AttentionOperands& g, const typename S::Args& scores,
                         const typename P::Args& a, int64_t first, int64_t last,
                         AttentionRoom<C>& room) {
  using Room = AttentionRoom<C>;
  const int64_t rows = last - first;
  const int64_t before = room.head * g.rows + first;
  const int64_t seen = C::kBounded ? last + C::kHorizon : C::kAllKeys;
  const int64_t keys = std::max<int64_t>(1, std::min<int64_t>(C::kAllKeys, seen));
  const float* query = g.query.matrix(g.batch, room.head) + first * g.query.row;
  for (int64_t k = 0; k < keys; k += attention::kKeysAtOnce) {
    const int64_t some = whole_lanes(std::min(attention::kKeysAtOnce, keys - k));
    attention::multiply_all(query, g.query.row, g.query.depth, room.keys + k, Room::kKeys, rows,
                            some, C::kDepth, false, room.scores + k, Room::kKeys);
  }
  for (int64_t r = 0; r < rows; ++r) {
    weigh<S, C>(scores, before + r, keys, room.scores + r * Room::kKeys);
  }
  for (int64_t k = 0; k < keys; k += attention::kKeysAtOnce) {
    attention::multiply_all(room.scores + k, Room::kKeys, 1, room.values + k * Room::kColumns,
                            Room::kColumns, rows, Room::kColumns,
                            std::min(attention::kKeysAtOnce, keys - k), k > 0, room.results,
                            Room::kColumns);
  }
  constexpr int V = C::kOutVec;
  constexpr int64_t kRun = C::kOutRun ? C::kOutRun : C::kColumns;
  const typename P::template Scalars<1> s{};
  for (int64_t r = 0; r < rows; ++r) {
    const float* results = room.results + r * Room::kColumns;
    for_each_chunk<V, C::kOutRun>(0, C::kColumns, kRun,
                                  [&](auto lanes, int64_t, int64_t e) KW_INLINE {
                                    constexpr int W = decltype(lanes)::value;
                                    typename P::template Fields<W> f;
                                    Vec<W> x;
                                    for (int v = 0; v < W; ++v) x.lanes[v] = results[e + v];
                                    P::begin(f, x);
                                    P::store_elements(f, s, a, Cursor{before + r, e});
                                  });
  }
}

template <class S, class P, class C>
void attend(const AttentionOperands& g, const typename S::Args& scores, const typename P::Args& a,
            int threads) {
  const int64_t heads = int64_t{g.batch.outer} * g.batch.inner;
  const int64_t blocks = (g.rows + attention::kQueries - 1) / attention::kQueries;
  const int64_t work = heads * g.rows * C::kAllKeys * (C::kDepth + C::kColumns);
  const int workers = work < attention::kWorthWaking ? 1 : threads;
#pragma omp parallel num_threads(workers)
  {
    AttentionRoom<C> room;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < heads * blocks; ++i) {
      room.take(g, i / blocks);
      const int64_t first = i % blocks * attention::kQueries;
      const int64_t last = std::min<int64_t>(g.rows, first + attention::kQueries);
      attend_block<S, P, C>(g, scores, a, first, last, room);
    }
  }
}

}  // namespace kw
