// softmax(scores) times value in one kernel, where the scores are a program over query times key.
//
// A block has 16 * kTiles query rows for each of its warps, and walks over the keys in tiles. The
// keys and values of a tile are split on their way into shared memory, once for all warps; a warp
// keeps its queries, scores, weights and results in registers, as mma.sync lays them out: the
// accumulators of one product are the left operand of the next, so weights go nowhere. Rows follow
// the largest score so far, and results are brought to a larger one when it is met. The scores are
// in memory nowhere, and operands are read as they lie, by strides.
//
// Float32 at full accuracy is three TF32 products: x = hi + lo, and lo*hi + hi*lo + hi*hi. TF32 has
// the exponents of float32, so nothing is scaled, and no range is lost. Tensor cores truncate when
// they accumulate, so small and large products have sums of their own, which go to float32
// registers after 32 of depth and begin again. What cannot be split (NaN, infinities, numbers that
// round to one) is looked for on the way in; a tile that has such a number is multiplied in
// ordinary float32 arithmetic from memory. So NaN and infinity land where matmul, softmax and
// matmul put them. With one product (`high`), operands are rounded to TF32 as the library's are.
//
// float16 and bfloat16 (T) are multiplied as they are, since TF32 holds every one of them; weights
// are rounded to TF32.
//
// S is the program of the scores: besides what program.cuh says of one stage, its maximum,
//   S::begin(fields, product)       takes lanes of query times key in place of a load
//   S::weight(largest, sum)         what a row of exponentials is multiplied by
// P is the program of the results (epilogue.cuh): P::begin(fields, product), P::store_elements.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "reduce.cuh"
#include "split.cuh"

namespace kw {

// The operands of both products. Rows of `value`, as those of any right operand, are columns of the
// result, and its depth are the keys.
struct AttentionOperands {
  Operand query;
  Operand key;
  Operand value;
  Batch batch;
  int rows;
};

namespace attention {

constexpr int kQuad = 4;       // lanes that share a row
constexpr int kStep = 8;       // depth of one product of the tensor cores, and columns of it
constexpr int kPromoted = 32;  // depth after which a sum goes to float32 registers

__host__ __device__ constexpr int rounded_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}

// The smallest pitch for so many columns that is `rest` modulo `unit`.
__host__ __device__ constexpr int pitch_of(int columns, int rest, int unit) {
  return columns + ((rest - columns) % unit + unit) % unit;
}

// Two neighbours along the depth of a product, as tensor cores take them, all of one part together.
template <int kPlanes>
struct alignas(8 * kPlanes) Pair {
  float at[kPlanes][2];
};

// Rounded to nearest, as the library rounds.
__device__ __forceinline__ float to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// The 11 highest bits of a finite number, rounded to nearest, and those of what is left of it.
// Tensor cores do not read the lowest bits, so the latter keeps them. Of a NaN, an infinity or what
// rounds to one a NaN is left: it is returned.
__device__ __forceinline__ float part(float x, float& high, float& low) {
  high = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
  const float left = x - high;
  low = __uint_as_float(__float_as_uint(left) + 0x1000u);
  return left;
}

// The same number, of which the compiler does not know that it is the same in all turns of a loop:
// what follows from it is computed in each, and takes no registers in between.
__device__ __forceinline__ float anew(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

template <int kPlanes>
__device__ __forceinline__ void set(float (&at)[kPlanes][4], int i, float x) {
  if constexpr (kPlanes == 2) {
    part(x, at[0][i], at[1][i]);
  } else {
    at[0][i] = to_tf32(x);
  }
}

__device__ __forceinline__ void multiply(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// Sums of products: of two parts, those of small products apart.
template <int kPlanes>
struct Sums {
  float at[kPlanes][4] = {};

  __device__ __forceinline__ void add(const float (&a)[kPlanes][4], const Pair<kPlanes>& b) {
    if constexpr (kPlanes == 2) {
      multiply(at[1], a[1], b.at[0]);
      multiply(at[1], a[0], b.at[1]);
    }
    multiply(at[0], a[0], b.at[0]);
  }

  __device__ __forceinline__ float operator[](int i) const {
    return kPlanes == 2 ? at[0][i] + at[kPlanes - 1][i] : at[0][i];
  }
};

// A matrix of one product of the batch, by rows and columns.
template <class T>
struct Matrix {
  const T* at;
  int64_t row;
  int64_t column;

  __device__ __forceinline__ float operator()(int r, int c) const {
    return load_row<1>(at + r * row + c * column)[0];
  }
};

template <class T>
__device__ __forceinline__ const T* matrix_of(const Operand& x, int outer, int inner) {
  return static_cast<const T*>(x.at) + outer * x.outer + inner * x.inner;
}

// A tile of a right operand on its way into shared memory: pairs along the depth, one of them from
// each thread at a time, of kRows rows. In shared memory neighbours lie along the pairs (kInner) or
// along the rows; threads read neighbours in memory, along the depth (kAlong) or along the rows. It
// waits in registers while the tile before it is multiplied. Tiles that are not whole repeat their
// last row or depth: no query looks at such a key, and no result at such a column.
template <class T>
struct Staged : T {
  using T::kAlong;
  using T::kPairs;
  using T::kPlanes;
  using T::kRows;
  using T::kThreads;
  using Element = typename T::Element;
  static constexpr int kEach = (kRows * kPairs + kThreads - 1) / kThreads;
  static constexpr bool kEven = kRows * kPairs % kThreads == 0;
  Pack<Element, 2> at[kEach];

  __device__ __forceinline__ static int2 place(int i) {
    const int n = static_cast<int>(threadIdx.x) + i * kThreads;
    return kAlong ? int2{n / kPairs, n % kPairs} : int2{n % kRows, n / kRows};
  }

  // Nothing here waits for a load.
  __device__ __forceinline__ void load(const Matrix<Element>& source, int rows, int depth) {
    const int64_t row = kAlong ? source.row : 1;
    const int64_t column = kAlong ? 1 : source.column;
    KW_LANES
    for (int i = 0; i < kEach; ++i) {
      const int2 n = place(i);
      const int r = T::kWholeRows && kEven ? n.x : min(n.x, rows - 1);
      const int last = T::kVec == 2 ? (depth - 1) / 2 * 2 : depth - 1;  // pairs begin at even ones
      const int d = T::kWholeDepth && kEven ? 2 * n.y : min(2 * n.y, last);
      const Element* x = source.at + r * row + d * column;
      if constexpr (T::kVec == 2) {
        at[i] = read_only(reinterpret_cast<const Pack<Element, 2>*>(x));
      } else {
        using One = Pack<Element, 1>;
        const bool whole = (T::kWholeDepth && kEven) || d + 1 < depth;
        at[i].items[0] = read_only(reinterpret_cast<const One*>(x)).items[0];
        at[i].items[1] = read_only(reinterpret_cast<const One*>(whole ? x + column : x)).items[0];
      }
    }
  }

  // Says whether a number is not what its parts are.
  __device__ __forceinline__ bool store(Pair<kPlanes>* tile, int rows, int depth) const {
    float odd = 0.0f;
    KW_LANES
    for (int i = 0; i < kEach; ++i) {
      const int2 n = place(i);
      float2 x{to_float(at[i].items[0]), to_float(at[i].items[1])};
      Pair<kPlanes> pair;
      if constexpr (kPlanes == 2) {
        odd = fmaf(part(x.x, pair.at[0][0], pair.at[1][0]), 0.0f, odd);
        odd = fmaf(part(x.y, pair.at[0][1], pair.at[1][1]), 0.0f, odd);
      } else {
        // Nobody would notice that zero times what is repeated here is not zero.
        const bool inside = T::kWholeRows || n.x < rows;
        if (!inside || (!T::kWholeDepth && 2 * n.y >= depth)) x.x = 0.0f;
        if (!inside || (!T::kWholeDepth && 2 * n.y + 1 >= depth)) x.y = 0.0f;
        pair.at[0][0] = to_tf32(x.x);
        pair.at[0][1] = to_tf32(x.y);
      }
      if (kEven || (kAlong ? n.x < kRows : n.y < kPairs)) {
        tile[T::kInner ? n.x * T::kPitch + n.y : n.y * T::kPitch + n.x] = pair;
      }
    }
    return odd != odd;
  }
};

// What a program says that its kernel is made for.
template <class T, class C>
struct Shape {
  static constexpr int kThreads = C::kWarps * 32;
  static constexpr int kRows = C::kWarps * C::kTiles * 16;
  static constexpr int kSteps = (C::kDepth + kStep - 1) / kStep;
  static constexpr int kColumns = rounded_up(C::kColumns, kStep);
  static constexpr int kKeyTiles = (C::kAllKeys + C::kKeys - 1) / C::kKeys;
  // Keys lie row by row, values depth by depth: a lane reads one pair of each, and these pitches
  // spread the lanes over all banks.
  struct Tile {
    using Element = T;
    static constexpr int kPlanes = C::kPlanes;
    static constexpr int kThreads = C::kWarps * 32;
  };
  struct KeyTile : Tile {
    static constexpr int kRows = C::kKeys;
    static constexpr int kPairs = kSteps * kStep / 2;
    static constexpr int kPitch = pitch_of(kPairs, 4, C::kPlanes == 2 ? 8 : 16);
    static constexpr int kVec = C::kKeyVec;
    static constexpr bool kInner = true;
    static constexpr bool kAlong = C::kKeyAlong != 0;
    static constexpr bool kWholeRows = C::kAllKeys % C::kKeys == 0;
    static constexpr bool kWholeDepth = C::kDepth % kStep == 0;
  };
  struct ValueTile : Tile {
    static constexpr int kRows = kColumns;
    static constexpr int kPairs = C::kKeys / 2;
    static constexpr int kPitch =
        C::kPlanes == 2 ? pitch_of(kColumns, 2, 8) : pitch_of(kColumns, 4, 16);
    static constexpr int kVec = C::kValueVec;
    static constexpr bool kInner = false;
    static constexpr bool kAlong = C::kValueAlong != 0;
    static constexpr bool kWholeRows = C::kColumns % kStep == 0;
    static constexpr bool kWholeDepth = C::kAllKeys % C::kKeys == 0;
  };
  using Keys = Staged<KeyTile>;
  using Values = Staged<ValueTile>;
  static constexpr int kKeyPairs = KeyTile::kRows * KeyTile::kPitch;
  static constexpr int kAllPairs = kKeyPairs + ValueTile::kPairs * ValueTile::kPitch;
  static constexpr int kSharedBytes = kAllPairs * static_cast<int>(sizeof(Pair<C::kPlanes>)) + 16;
};

// How many keys, from the first one on, any query up to this row looks at. The scores of all others
// are -inf, by their program, and are not computed.
template <class C>
__device__ __forceinline__ int seen_by(int row) {
  if (!C::kBounded || row + C::kHorizon + 1 >= C::kAllKeys) return C::kAllKeys;
  return row + C::kHorizon + 1 > 0 ? row + C::kHorizon + 1 : 0;
}

// One warp's rows. A lane has two rows of each sixteen, `row` and eight further down, and of every
// eight columns the two at 2 * quad.
template <class T, class S, class P, class C>
struct Warp {
  using Sizes = Shape<T, C>;
  static constexpr int kPlanes = C::kPlanes;
  static constexpr int kSteps = Sizes::kSteps;
  static constexpr int kEights = C::kKeys / kStep;
  static constexpr int kWide = Sizes::kColumns / kStep;
  static constexpr int kChunk = kPromoted / kStep;
  static constexpr int kTogether = C::kTogether;  // eights of columns of a left operand
  // Weights are brought below one over the number of keys, so that no sum of them and values is
  // larger than the largest value.
  static constexpr float kShrink = 1.0f / C::kRoom;

  const AttentionOperands& g;
  const typename S::Args& scores_of;
  const typename P::Args& a;
  Matrix<T> query;
  Matrix<T> key;
  Matrix<T> value;
  int64_t first;  // of the rows of all products, the first one of this product
  int row;        // of the lane, in its first sixteen
  int quad = static_cast<int>(threadIdx.x % kQuad);

  float q[C::kTiles][kSteps][4];
  float s[C::kTiles][kEights][4];
  float out[C::kTiles][kWide][4];
  float largest[C::kTiles][2];
  float sum[C::kTiles][2];
  bool special = false;

  __device__ __forceinline__ int row_of(int m, int i) const { return row + m * 16 + i * 8; }

  // Rows beyond the last one repeat it, and are not stored.
  __device__ __forceinline__ int64_t place_of(int m, int i) const {
    const int at = row_of(m, i);
    return first + (at < g.rows ? at : g.rows - 1);
  }

  // Nothing here waits for a load.
  __device__ __forceinline__ void load_queries() {
    const int64_t step = C::kQueryAlong ? 1 : query.column;
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        const int at = row_of(m, i) < g.rows ? row_of(m, i) : 0;
        const T* x = query.at + at * query.row + 2 * quad * step;
        KW_LANES
        for (int k = 0; k < kSteps; ++k) {
          const int column = k * kStep + 2 * quad;
          const bool whole = C::kDepth % kStep == 0;
          if constexpr (C::kQueryVec == 2) {
            const Vec<2> pair = load_row<2>(whole || column < C::kDepth ? x + k * kStep : query.at);
            q[m][k][i] = pair[0];
            q[m][k][2 + i] = pair[1];
          } else {
            const T* from = x + k * kStep * step;
            const bool second = whole || column + 1 < C::kDepth;
            q[m][k][i] = load_row<1>(whole || column < C::kDepth ? from : query.at)[0];
            q[m][k][2 + i] = load_row<1>(second ? from + step : query.at)[0];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void begin() {
    float odd = 0.0f;
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int k = 0; k < kSteps; ++k) {
        KW_LANES
        for (int i = 0; i < 4; ++i) {
          const bool inside = C::kDepth % kStep == 0 || k * kStep + 2 * quad + i / 2 < C::kDepth;
          if (!inside || row_of(m, i % 2) >= g.rows) q[m][k][i] = 0.0f;
          float high;
          float low;
          odd = fmaf(part(q[m][k][i], high, low), 0.0f, odd);
        }
      }
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        largest[m][i] = -detail::kInf;
        sum[m][i] = 0.0f;
      }
      KW_LANES
      for (int n = 0; n < kWide; ++n) {
        KW_LANES
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0.0f;
      }
    }
    special = kPlanes == 2 && __any_sync(0xffffffff, odd != odd);
  }

  // ---- query times key -----------------------------------------------------------------------

  __device__ __forceinline__ void clear_scores() {
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int j = 0; j < kEights; ++j) {
        KW_LANES
        for (int i = 0; i < 4; ++i) s[m][j][i] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(const Pair<kPlanes>* keys) {
    const int lane_key = static_cast<int>(threadIdx.x % 32) / kQuad;
    clear_scores();
    KW_LANES
    for (int group = 0; group < kEights; group += kTogether) {
      KW_LANES
      for (int chunk = 0; chunk < kSteps; chunk += kChunk) {
        Sums<kPlanes> sums[C::kTiles * kTogether];
        KW_LANES
        for (int k = chunk; k < kSteps && k < chunk + kChunk; ++k) {
          float left[C::kTiles][kPlanes][4];
          KW_LANES
          for (int m = 0; m < C::kTiles; ++m) {
            KW_LANES
            for (int i = 0; i < 4; ++i) set<kPlanes>(left[m], i, anew(q[m][k][i]));
          }
          KW_LANES
          for (int j = 0; j < kTogether && group + j < kEights; ++j) {
            const Pair<kPlanes> right =
                keys[((group + j) * kStep + lane_key) * Sizes::KeyTile::kPitch + k * kStep / 2 +
                     quad];
            KW_LANES
            for (int m = 0; m < C::kTiles; ++m) sums[m * kTogether + j].add(left[m], right);
          }
        }
        KW_LANES
        for (int m = 0; m < C::kTiles; ++m) {
          KW_LANES
          for (int j = 0; j < kTogether && group + j < kEights; ++j) {
            KW_LANES
            for (int i = 0; i < 4; ++i) s[m][group + j][i] += sums[m * kTogether + j][i];
          }
        }
      }
    }
  }

  // In ordinary arithmetic, from memory.
  __device__ __forceinline__ void multiply_keys_exactly(int start) {
    float exact[C::kTiles * kEights * 4];
#pragma unroll 1
    for (int n = 0; n < C::kTiles * kEights * 4; ++n) {
      const int at = row_of(n / (4 * kEights), n / 2 % 2);
      const int column = start + n / 4 % kEights * kStep + 2 * quad + n % 2;
      float total = 0.0f;
      if (at < g.rows && column < C::kAllKeys) {
#pragma unroll 1
        for (int d = 0; d < C::kDepth; ++d) total = fmaf(query(at, d), key(column, d), total);
      }
      exact[n] = total;
    }
    KW_LANES
    for (int n = 0; n < C::kTiles * kEights * 4; ++n) {
      s[n / (4 * kEights)][n / 4 % kEights][n % 4] = exact[n];
    }
  }

  // ---- softmax -------------------------------------------------------------------------------

  // Products become scores, those beyond the last key -inf.
  __device__ __forceinline__ void score(int start) {
    constexpr int V = C::kVec;
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        const int64_t at = place_of(m, i);
        KW_LANES
        for (int j = 0; j < kEights; ++j) {
          KW_LANES
          for (int v = 0; v < 2; v += V) {
            const int column = start + j * kStep + 2 * quad + v;
            Vec<V> product;
            KW_LANES
            for (int l = 0; l < V; ++l) product[l] = s[m][j][2 * i + v + l];
            // Beyond the last key it is asked again, so that nothing stands between the loads.
            const bool inside = C::kAllKeys % C::kKeys == 0 || column < C::kAllKeys;
            typename S::template Fields<V> f;
            typename S::template Scalars<1> none;
            S::begin(f, product);
            const Cursor there{at, inside ? column : C::kAllKeys - V};
            const Vec<V> result = S::contribution(Stage<0>{}, f, none, scores_of, there);
            KW_LANES
            for (int l = 0; l < V; ++l) {
              s[m][j][2 * i + v + l] = inside ? result[l] : -detail::kInf;
            }
          }
        }
      }
    }
  }

  // Scores become weights below the largest score so far; what is there is brought to that too.
  __device__ __forceinline__ void weigh() {
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        float most = largest[m][i];
        KW_LANES
        for (int j = 0; j < kEights; ++j) {
          most = maximum(most, maximum(s[m][j][2 * i], s[m][j][2 * i + 1]));
        }
        most = reduce_threads<Combine::kMax, kQuad>(most);
        // As long as all is -inf there is nothing to bring anywhere, and nothing to add.
        const float shift = most == -detail::kInf ? 0.0f : most;
        if constexpr (Sizes::kKeyTiles > 1) {
          const float factor = exp(largest[m][i] - shift);
          sum[m][i] *= factor;
          KW_LANES
          for (int n = 0; n < kWide; ++n) {
            out[m][n][2 * i] *= factor;
            out[m][n][2 * i + 1] *= factor;
          }
        }
        largest[m][i] = most;
        float total = 0.0f;
        KW_LANES
        for (int j = 0; j < kEights; ++j) {
          KW_LANES
          for (int v = 0; v < 2; ++v) {
            const float weight = exp(s[m][j][2 * i + v] - shift);
            total += weight;
            s[m][j][2 * i + v] = weight * kShrink;
          }
        }
        sum[m][i] += total;
      }
    }
  }

  // ---- weights times value -------------------------------------------------------------------

  // Of eight keys a lane's weights are those at 2 * quad and after it, so the left operand takes
  // them for its columns quad and quad + 4, and the right one reads these rows.
  __device__ __forceinline__ void multiply_values(const Pair<kPlanes>* values) {
    const int lane_column = static_cast<int>(threadIdx.x % 32) / kQuad;
    KW_LANES
    for (int group = 0; group < kWide; group += kTogether) {
      KW_LANES
      for (int chunk = 0; chunk < kEights; chunk += kChunk) {
        Sums<kPlanes> sums[C::kTiles * kTogether];
        KW_LANES
        for (int k = chunk; k < kEights && k < chunk + kChunk; ++k) {
          float left[C::kTiles][kPlanes][4];
          KW_LANES
          for (int m = 0; m < C::kTiles; ++m) {
            KW_LANES
            for (int i = 0; i < 4; ++i) set<kPlanes>(left[m], i, s[m][k][i % 2 * 2 + i / 2]);
          }
          KW_LANES
          for (int n = 0; n < kTogether && group + n < kWide; ++n) {
            const Pair<kPlanes> right = values[(k * kStep / 2 + quad) * Sizes::ValueTile::kPitch +
                                               (group + n) * kStep + lane_column];
            KW_LANES
            for (int m = 0; m < C::kTiles; ++m) sums[m * kTogether + n].add(left[m], right);
          }
        }
        KW_LANES
        for (int m = 0; m < C::kTiles; ++m) {
          KW_LANES
          for (int n = 0; n < kTogether && group + n < kWide; ++n) {
            KW_LANES
            for (int i = 0; i < 4; ++i) out[m][group + n][i] += sums[m * kTogether + n][i];
          }
        }
      }
    }
  }

  // In ordinary arithmetic, from memory: lanes hand each other their weights.
  __device__ __forceinline__ void multiply_values_exactly(int start) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float weights[C::kTiles * kEights * 4];
    float total[C::kTiles * kWide * 4];
    KW_LANES
    for (int n = 0; n < C::kTiles * kEights * 4; ++n) {
      weights[n] = s[n / (4 * kEights)][n / 4 % kEights][n % 4];
    }
    for (int n = 0; n < C::kTiles * kWide * 4; ++n) total[n] = 0.0f;
    const int live = C::kAllKeys - start < C::kKeys ? C::kAllKeys - start : C::kKeys;
#pragma unroll 1
    for (int k = 0; k < live; ++k) {
      const int from = lane / kQuad * kQuad + k % kStep / 2;
#pragma unroll 1
      for (int n = 0; n < C::kTiles * kWide * 4; ++n) {
        const int m = n / (4 * kWide);
        const int own = (m * kEights + k / kStep) * 4 + n / 2 % 2 * 2 + k % 2;
        const float weight = __shfl_sync(0xffffffff, weights[own], from);
        const int column = n / 4 % kWide * kStep + 2 * quad + n % 2;
        if (column < C::kColumns) total[n] = fmaf(weight, value(start + k, column), total[n]);
      }
    }
    KW_LANES
    for (int n = 0; n < C::kTiles * kWide * 4; ++n) {
      out[n / (4 * kWide)][n / 4 % kWide][n % 4] += total[n];
    }
  }

  // ---- results -------------------------------------------------------------------------------

  __device__ __forceinline__ void store() {
    constexpr int V = C::kOutVec;
    KW_LANES
    for (int m = 0; m < C::kTiles; ++m) {
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        const float all = reduce_threads<Combine::kSum, kQuad>(sum[m][i]);
        const float weight = S::weight(largest[m][i], all) * (1.0f / kShrink);
        if (row_of(m, i) >= g.rows) continue;
        const int64_t at = place_of(m, i);
        KW_LANES
        for (int n = 0; n < kWide; ++n) {
          KW_LANES
          for (int v = 0; v < 2; v += V) {
            const int column = n * kStep + 2 * quad + v;
            if (C::kColumns % kStep != 0 && column >= C::kColumns) continue;
            Vec<V> product;
            KW_LANES
            for (int l = 0; l < V; ++l) product[l] = out[m][n][2 * i + v + l] * weight;
            typename P::template Fields<V> f;
            typename P::template Scalars<1> none;
            P::begin(f, product);
            P::store_elements(f, none, a, Cursor{at, column});
          }
        }
      }
    }
  }
};

template <class T, class S, class P, class C>
__global__ void __launch_bounds__(C::kWarps * 32, C::kBlocks)
    kernel(const __grid_constant__ AttentionOperands g,
           const __grid_constant__ typename S::Args scores,
           const __grid_constant__ typename P::Args a) {
  using Sizes = Shape<T, C>;
  extern __shared__ __align__(16) char memory[];
  auto* keys = reinterpret_cast<Pair<C::kPlanes>*>(memory);
  auto* values = keys + Sizes::kKeyPairs;
  auto* special = reinterpret_cast<int*>(keys + Sizes::kAllPairs);
  if (threadIdx.x < 2) special[threadIdx.x] = 0;
  await_turn();

  const int strips = (g.rows + Sizes::kRows - 1) / Sizes::kRows;
  const int64_t product = blockIdx.x / strips;
  const int outer = static_cast<int>(product / g.batch.inner);
  const int inner = static_cast<int>(product % g.batch.inner);
  const int warp = static_cast<int>(threadIdx.x / 32);
  // Where later queries look at more keys, they begin first.
  const int at = static_cast<int>(blockIdx.x % strips);
  const int strip = (C::kBounded ? strips - 1 - at : at) * Sizes::kRows;
  const int last = (strip + Sizes::kRows < g.rows ? strip + Sizes::kRows : g.rows) - 1;
  const int seen = seen_by<C>(last);
  Warp<T, S, P, C> w{
      g,
      scores,
      a,
      {matrix_of<T>(g.query, outer, inner), g.query.row, g.query.depth},
      {matrix_of<T>(g.key, outer, inner), g.key.row, g.key.depth},
      {matrix_of<T>(g.value, outer, inner), g.value.depth, g.value.row},
      product * g.rows,
      strip + warp * C::kTiles * 16 + static_cast<int>(threadIdx.x % 32) / kQuad,
  };
  typename Sizes::Keys next_keys;
  typename Sizes::Values next_values;
  const auto fetch = [&](int start) {
    const int live = C::kAllKeys - start;
    const Matrix<T> key{w.key.at + start * w.key.row, w.key.row, w.key.column};
    const Matrix<T> value{w.value.at + start * w.value.row, w.value.column, w.value.row};
    next_keys.load(key, live, C::kDepth);
    next_values.load(value, C::kColumns, live);
  };
  w.load_queries();
  fetch(0);
  w.begin();
#pragma unroll 1
  for (int start = 0; start < seen; start += C::kKeys) {
    __syncthreads();  // nobody reads the tile before this one any more
    const int live = C::kAllKeys - start;
    if (next_keys.store(keys, live, C::kDepth)) special[0] = 1;
    if (next_values.store(values, C::kColumns, live)) special[1] = 1;
    __syncthreads();
    if (Sizes::kKeyTiles > 1 && start + C::kKeys < seen) fetch(start + C::kKeys);
    if (C::kBounded && start >= seen_by<C>(w.row_of(C::kTiles - 1, 1) | 7)) continue;
    if (w.special || special[0] != 0) {
      w.multiply_keys_exactly(start);
    } else {
      w.multiply_keys(keys);
    }
    w.score(start);
    w.weigh();
    if (special[1] != 0) {
      w.multiply_values_exactly(start);
    } else {
      w.multiply_values(values);
    }
  }
  w.store();
}

}  // namespace attention

template <class T, class S, class P, class C>
cudaError_t attend(const AttentionOperands& g, const typename S::Args& scores,
                   const typename P::Args& a, cudaStream_t stream) {
  using Sizes = attention::Shape<T, C>;
  const auto kernel = attention::kernel<T, S, P, C>;
  const int64_t blocks = (g.rows + Sizes::kRows - 1) / Sizes::kRows * g.batch.count();
  if (blocks == 0) return cudaSuccess;
  const cudaError_t error =
      allow_shared(reinterpret_cast<const void*>(kernel), Sizes::kSharedBytes);
  if (error != cudaSuccess) return error;
  const Grid grid{static_cast<unsigned>(blocks), Sizes::kThreads, stream, Sizes::kSharedBytes};
  return launch(kernel, grid, g, scores, a);
}

}  // namespace kw
