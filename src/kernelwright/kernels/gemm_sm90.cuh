// left [rows, depth] times right [columns, depth] transposed, for each matrix of a batch, on
// Hopper's tensor cores, with a row program run on the accumulators (epilogue.cuh) instead of a
// plain store.
//
// One block per multiprocessor stays for the whole launch and takes tile after tile of 128 rows by
// kBlockN columns. Its first warpgroup feeds: one thread issues bulk tensor copies into a ring of
// kStages stages, each guarded by a `full` and an `empty` barrier. Two more warpgroups consume:
// each multiplies 64 rows of the tile. Blocks of a cluster work on neighbouring tiles; each fetches
// its share of what they have in common and the copy engine delivers it to all of them.
//
// The loops say what a stage holds. SplitFloat computes float32 products from pairs of float16
// (split.cuh): lo*hi + hi*lo + hi*hi. The tensor cores truncate when they accumulate, so after
// every stage the partial sums are added to float32 registers and start again from zero; the two
// warpgroups take turns, so that one multiplies while the other one adds. RoundedFloat computes
// float32 products at the precision of TF32 from single float16 numbers, twice as fast as TF32
// itself. In both, elements whose error cannot be bounded are computed again in plain float32
// arithmetic. Bfloat16 and Float16 multiply what is in memory.
//
// Operands that are split may lie in any way: split.cuh brings them into panels. The others are
// read as they lie, with either of their axes the inner one. The row of the program's cursor counts
// through all matrices of the batch.
//
// The right operand of the first two, usually a weight, is split on every call: by a kernel before
// the product. SplitFloat has time to do most of it on the way: only the first wave's rows are
// split before, the others by the three warps of the feeding warpgroup that have nothing else to
// do. Where there is nothing left to split, these warps need few registers, and each block
// multiplies two tiles at once with what is set free: it fetches a third less. Whether, and how
// many blocks run, is not decided here: GemmDecision comes with the launch.
#pragma once

#include "epilogue.cuh"
#include "hopper.cuh"
#include "split.cuh"

namespace kw {

// The halves and scales are room for what split.cuh makes of the operands; the loops that multiply
// what is in memory leave them empty. Rows and columns are those of one matrix.
struct GemmOperands {
  Operand left;
  Operand right;
  void* left_halves;
  void* left_scales;
  void* right_halves;
  void* right_scales;
  unsigned* progress;
  Batch batch;
  int64_t rows;
  int columns;
  int depth;

  __host__ __device__ split::Job left_job() const {
    const Batch each = left.distinct(batch);
    return {left,
            each,
            static_cast<uint16_t*>(left_halves),
            static_cast<RowScale*>(left_scales),
            rows,
            split::whole_panels(rows) * each.count(),
            false};
  }
  template <class C>
  __host__ __device__ split::Job right_job(int64_t count) const {
    return {right,
            right.distinct(batch),
            static_cast<uint16_t*>(right_halves),
            static_cast<RowScale*>(right_scales),
            columns,
            count,
            C::kVec == 4};
  }
  // Rows of one matrix of the right operand's halves.
  __host__ __device__ int right_rows() const {
    return static_cast<int>(split::whole_panels(columns));
  }
};

// What runtime/products.py decides about a launch: how many tiles a block multiplies at once, how
// many clusters run, and how many rows of the right operand are split before they do (a frozen
// one's halves are those of an earlier call).
struct GemmDecision {
  int tiles;
  int clusters;
  int64_t early;
  bool frozen;

  // The warps that split on the way read four neighbours at a time.
  __host__ __device__ bool on_the_way(const GemmOperands& g) const {
    return !frozen && early < g.right_rows() && g.depth > split::kLongestShort &&
           g.depth % 4 == 0 && g.right.aligned();
  }
};

// What is known of the operands when a kernel is compiled.
template <bool kHasBatch, hopper::Major kOfLeft, hopper::Major kOfRight>
struct GemmLayout {
  static constexpr bool kBatched = kHasBatch;
  static constexpr hopper::Major kLeft = kOfLeft;
  static constexpr hopper::Major kRight = kOfRight;
};

using Plain = GemmLayout<false, hopper::Major::kDepth, hopper::Major::kDepth>;

template <hopper::Element kType, CUtensorMapDataType kInMemory, int kCount, bool kFromFloat>
struct GemmLoop {
  static constexpr hopper::Element kElement = kType;
  static constexpr CUtensorMapDataType kMapType = kInMemory;
  static constexpr int kBytes = 2;
  static constexpr int kPlanes = kCount;
  static constexpr bool kScaled = kFromFloat;  // the operands are float32 and are split first
  static constexpr bool kPromotes = kCount == 2;
  static constexpr bool kSplitsOnTheWay = kCount == 2;
};

using SplitFloat = GemmLoop<hopper::Element::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, true>;
using RoundedFloat = GemmLoop<hopper::Element::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 1, true>;
using Float16 = GemmLoop<hopper::Element::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 1, false>;
using Bfloat16 = GemmLoop<hopper::Element::kBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 1, false>;

// The three warps of the feeding warpgroup that split rows of the right operand.
struct SplittingWarps {
  static constexpr int kThreads = 96;
  static constexpr int kKept = 22;
  static __device__ __forceinline__ void sync() { hopper::sync_threads<kThreads>(3); }
};

// What they share: the row at hand, and what each warp has found in it.
struct GemmRow {
  split::Shared<SplittingWarps> split;
  unsigned row;
};

// How many tiles a block multiplies at once, and what the blocks of a cluster share. One tile: they
// lie side by side and have the same rows of the left operand. Two neighbours: they lie below one
// another and have the same two strips of the right operand, the larger part of what they fetch.
// From here on, C is one of these.
template <class Config, int kTilesAtOnce, class Layout>
struct GemmGroup : Config, Layout {
  static constexpr int kTiles = kTilesAtOnce;
  static constexpr int kDown = kTiles == 1 ? 1 : Config::kCluster;
  static constexpr int kAcross = Config::kCluster / kDown;
  // A stage of two tiles is half as large again.
  static constexpr int kStages = Config::kStages * 2 / (kTiles + 1);
  static constexpr bool kSplittable = !Layout::kBatched && Layout::kRight == hopper::Major::kDepth;
};

template <class Loop, class C>
struct GemmShape {
  // A stage is 128 bytes deep: the span of the swizzle, four steps of a matrix product.
  static constexpr int kRowBytes = 128;
  static constexpr int kDepth = kRowBytes / Loop::kBytes;
  static constexpr int kBlockM = 128;
  static constexpr int kLeftBytes = Loop::kPlanes * kBlockM * kRowBytes;
  static constexpr int kRightBytes = Loop::kPlanes * C::kBlockN * kRowBytes;  // of one tile
  static constexpr int kStageBytes = kLeftBytes + C::kTiles * kRightBytes;
  // A block fetches this many of the rows that it shares.
  static constexpr int kLeftShare = Loop::kPlanes * kBlockM / C::kAcross;
  static constexpr int kRightShare = Loop::kPlanes * C::kBlockN / C::kDown;
  // In the stages: what was split lies along the depth.
  static constexpr hopper::Major kLeft = Loop::kScaled ? hopper::Major::kDepth : C::kLeft;
  static constexpr hopper::Major kRight = Loop::kScaled ? hopper::Major::kDepth : C::kRight;
  static constexpr int kThreads = 384;
  static constexpr int kAccumulators = C::kBlockN / 2;
  static constexpr bool kSplits = Loop::kSplitsOnTheWay && C::kSplittable && C::kTiles == 1;
  // Together 168 for each of the block's threads; those that split hold a row.
  static constexpr int kConsumerRegisters = kSplits ? 192 : 232;
  static constexpr int kFeederRegisters = 3 * 168 - 2 * kConsumerRegisters;
  // The swizzle wants stages at multiples of 1024 bytes; dynamic shared memory starts anywhere.
  static constexpr int kShared = C::kStages * kStageBytes + 1024;
};

// A stage comes in parts, one for each tile: its right operand, and with the last one the left,
// which is read until then. So the first part is filled again while the last is still multiplied.
template <class C>
struct GemmBarriers {
  hopper::Barrier full[C::kStages][C::kTiles];
  hopper::Barrier empty[C::kStages][C::kTiles];
};

// The groups of tiles of a matrix that the clusters multiply. Those of a band of kBand row tiles
// follow one another down the rows first, so that those that run together share a narrow strip of
// the right operand.
template <class C>
struct GemmGroups {
  static constexpr int kTall = 128 * C::kDown;
  static constexpr int kWide = C::kBlockN * C::kAcross * C::kTiles;
  static constexpr int kBand = C::kBand / C::kDown;
  int down;
  int across;
  int count;

  __host__ __device__ GemmGroups(int64_t rows, int columns)
      : down(static_cast<int>((rows + kTall - 1) / kTall)),
        across((columns + kWide - 1) / kWide),
        count(down * across) {}
};

// A block's way through the tiles. Each role of the block walks on its own: a value that two roles
// shared would have to fit the registers of both.
template <class C>
struct GemmWalk {
  GemmGroups<C> groups;
  int at;
  int step;
  int rank = 0;
  int matrices = 1;
  int matrix = 0;
  int row_tile = 0;
  int column_tile = 0;  // the first one

  __device__ __forceinline__ explicit GemmWalk(const GemmOperands& g)
      : groups(g.rows, g.columns),
        at(hopper::block_index() / C::kCluster),
        step(hopper::block_count() / C::kCluster) {
    if constexpr (C::kBatched) matrices = static_cast<int>(g.batch.count());
    if constexpr (C::kCluster > 1) rank = hopper::cluster_rank();
  }

  // The block's place in its cluster.
  __device__ __forceinline__ int down() const { return C::kDown > 1 ? rank : 0; }
  __device__ __forceinline__ int across() const { return C::kAcross > 1 ? rank : 0; }

  __device__ __forceinline__ bool locate() {
    constexpr int kBand = GemmGroups<C>::kBand;
    if constexpr (C::kBatched) matrix = at / groups.count;
    const int first = at - matrix * groups.count;
    const int band = first / (kBand * groups.across);
    const int within = first - band * kBand * groups.across;
    const int height = min(kBand, groups.down - band * kBand);
    if (matrix >= matrices || first >= groups.count) return false;
    row_tile = (band * kBand + within % height) * C::kDown;
    column_tile = within / height * C::kAcross * C::kTiles;
    row_tile += down();
    column_tile += across();
    return true;
  }

  __device__ __forceinline__ void next() { at += step; }
};

namespace detail {

__device__ __forceinline__ unsigned read_progress(const unsigned* at) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}

__device__ __forceinline__ void add_progress(unsigned* at) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

// Waits until a column tile's rows of the right operand are split.
template <class C>
__device__ __forceinline__ void await_rows(const GemmOperands& g, int column_tile) {
  const int wanted = min(C::kBlockN, g.right_rows() - column_tile * C::kBlockN);
  if (wanted <= 0) return;
  const unsigned* const ready = g.progress + 1 + column_tile;
  while (read_progress(ready) < static_cast<unsigned>(wanted)) __nanosleep(64);
  hopper::fence_copy_engine();
}

// A place in the ring of stages; the phase flips with every turn.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The warp's share of a few dot products in float32, each of a left and a right row.
template <bool kVector, int kDots>
__device__ __forceinline__ void dots(float (&sums)[kDots], const float* const (&left)[kDots],
                                     const float* const (&right)[kDots], int depth,
                                     int64_t left_step, int64_t right_step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kVector) {
#pragma unroll 1
    for (int at = lane * 4; at < depth; at += 128) {
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(left[n] + at);
        const float4 y = *reinterpret_cast<const float4*>(right[n] + at);
        sums[n] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sums[n]))));
      }
    }
  } else {
#pragma unroll 1
    for (int at = lane; at < depth; at += 32) {
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        sums[n] = fmaf(left[n][at * left_step], right[n][at * right_step], sums[n]);
      }
    }
  }
}

}  // namespace detail

// The matrix that is multiplied, by its place in the batch. Without a batch all of this is zero
// when it is compiled.
template <class C>
struct GemmMatrix {
  int outer = 0;
  int inner = 0;
  int at = 0;

  __device__ __forceinline__ GemmMatrix(const GemmOperands& g, int matrix) {
    if constexpr (C::kBatched) {
      at = matrix;
      outer = matrix / g.batch.inner;
      inner = matrix - outer * g.batch.inner;
    }
  }

  // Which of an operand's distinct matrices it is.
  __device__ __forceinline__ int64_t of(const Operand& x, const Batch& batch) const {
    return C::kBatched ? x.index(batch, outer, inner) : 0;
  }
  __device__ __forceinline__ const RowScale* left_scales(const GemmOperands& g) const {
    return static_cast<const RowScale*>(g.left_scales) + of(g.left, g.batch) * g.rows;
  }
  __device__ __forceinline__ const RowScale* right_scales(const GemmOperands& g) const {
    return static_cast<const RowScale*>(g.right_scales) + of(g.right, g.batch) * g.columns;
  }
};

// What the columns of a thread add to its doubt: their doubts, and the largest of their scales, by
// which the rows' doubts are multiplied. One pair of numbers stands for all of them; it is only
// ever too large.
struct ColumnDoubt {
  float own = 0.0f;
  float most = 0.0f;
};

// Undoes the scales of a tile's columns, two neighbours at a time.
template <class P, class C, int kCount>
__device__ __forceinline__ void scale_columns(float (&d)[kCount], ColumnDoubt& doubt,
                                              const RowScale* from, int first_column) {
  constexpr bool kWhole = P::kColumns % C::kBlockN == 0;  // all of a tile's columns exist
  const int lane = hopper::lane();
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
    const int column = first_column + column_of<C>(4 * n, lane % 4);
    float4 x{};  // scale and doubt of one, scale and doubt of the other
    if constexpr (P::kColumns % 2 == 0) {
      if (kWhole || column < P::kColumns) x = *reinterpret_cast<const float4*>(from + column);
    } else {
      if (column < P::kColumns) x = {from[column].scale, from[column].doubt, 0.0f, 0.0f};
      if (column + 1 < P::kColumns) {
        x.z = from[column + 1].scale;
        x.w = from[column + 1].doubt;
      }
    }
    doubt.own = fmaxf(doubt.own, fmaxf(x.y, x.w));
    doubt.most = fmaxf(doubt.most, fmaxf(x.x, x.z));
    d[n * 4] *= x.x;
    d[n * 4 + 1] *= x.z;
    d[n * 4 + 2] *= x.x;
    d[n * 4 + 3] *= x.z;
  }
  hopper::pin(d);
}

// Undoes the scales of a tile's rows, and computes again what the split leaves in doubt: a warp
// takes a few of its doubtful elements at a time.
template <class C, int kCount>
__device__ __forceinline__ void settle(float (&d)[kCount], const ColumnDoubt& columns,
                                       const GemmOperands& g, const GemmMatrix<C>& matrix,
                                       int64_t warp_row, int first_column) {
  constexpr int kDots = kCount > 64 ? 2 : 4;
  const int lane = hopper::lane();
  const RowScale* const scales = matrix.left_scales(g);
  float least[2];  // elements must be larger than this; a NaN never is
  bool all_well = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = warp_row + lane / 4 + 8 * i;
    const RowScale x = row < g.rows ? scales[row] : RowScale{};
    least[i] = columns.own * x.scale + columns.most * x.doubt;
    if (least[i] == 0.0f || x.scale == 0.0f) least[i] = -1.0f;  // zeros are zero without any doubt
    float smallest = __builtin_huge_valf();
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const int index = k / 2 * 4 + 2 * i + k % 2;
      d[index] *= x.scale;
      smallest = minimum(smallest, fabsf(d[index]));
    }
    all_well = all_well && smallest > least[i];
  }
  hopper::pin(d);
  if (__all_sync(0xffffffff, all_well)) return;

  uint64_t doubtful[2] = {};  // a bit for each accumulator
#pragma unroll
  for (int index = 0; index < kCount; ++index) {
    if (!(fabsf(d[index]) > least[index / 2 % 2])) {
      doubtful[index / 64] |= uint64_t{1} << index % 64;
    }
  }
  const float* const left = g.left.floats(matrix.outer, matrix.inner);
  const float* const right = g.right.floats(matrix.outer, matrix.inner);
  constexpr bool kAlong = C::kLeft == hopper::Major::kDepth && C::kRight == hopper::Major::kDepth;
#pragma unroll 1
  for (int index = 0; index < kCount; ++index) {
    const uint64_t bits = index < 64 ? doubtful[0] : doubtful[1];
    const int own_column = first_column + column_of<C>(index, lane % 4);
    const bool inside =
        own_column < g.columns && warp_row + lane / 4 + 8 * (index / 2 % 2) < g.rows;
    const bool again = (bits >> index % 64 & 1) != 0 && inside;
    unsigned owners = __ballot_sync(0xffffffff, again);
#pragma unroll 1
    while (owners != 0) {
      int owner[kDots];
      const float* left_rows[kDots];
      const float* right_rows[kDots];
      float sums[kDots] = {};
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        owner[n] = owners != 0 ? __ffs(static_cast<int>(owners)) - 1 : owner[n ? n - 1 : 0];
        owners &= owners - 1;
        left_rows[n] = left + (warp_row + owner[n] / 4 + 8 * (index / 2 % 2)) * g.left.row;
        const int column = first_column + column_of<C>(index, owner[n] % 4);
        right_rows[n] = right + column * g.right.row;
      }
      if (kAlong && g.depth % 4 == 0 && g.left.aligned() && g.right.aligned()) {
        detail::dots<true>(sums, left_rows, right_rows, g.depth, 1, 1);
      } else {
        detail::dots<false>(sums, left_rows, right_rows, g.depth, g.left.depth, g.right.depth);
      }
#pragma unroll
      for (int n = 0; n < kDots; ++n) {
        const float sum = reduce_threads<Combine::kSum, 32>(sums[n]);
#pragma unroll
        for (int m = 0; m < kCount; ++m) {
          if (lane == owner[n] && m == index) d[m] = sum;
        }
      }
    }
  }
}

namespace detail {

// Where the boxes of the matrix that is multiplied lie in an operand's tensor map (describe):
// behind so many panels, or in these batches.
template <class Loop>
struct Place {
  int panels = 0;
  int inner = 0;
  int outer = 0;

  template <class C>
  __device__ __forceinline__ Place(const GemmOperands& g, const GemmMatrix<C>& matrix,
                                   const Operand& x, int64_t rows) {
    if constexpr (!C::kBatched) return;
    if constexpr (Loop::kScaled) {
      panels =
          static_cast<int>(matrix.of(x, g.batch) * (split::whole_panels(rows) / split::kPanel));
    } else {
      inner = x.inner == 0 ? 0 : matrix.inner;
      outer = x.outer == 0 ? 0 : matrix.outer;
    }
  }

  template <hopper::Major kMajor>
  __device__ __forceinline__ hopper::Box box(int depth, int plane, int row) const {
    if constexpr (Loop::kScaled) {
      return {0, 0, depth / split::kPanel * Loop::kPlanes + plane, panels + row / split::kPanel};
    } else if constexpr (kMajor == hopper::Major::kDepth) {
      return {depth, row, inner, outer};
    } else {
      return {row, depth, inner, outer};
    }
  }
};

}  // namespace detail

// One thread: copies every stage of every tile, as soon as the cluster has read what was there.
template <class Loop, class C>
__device__ __forceinline__ void feed(const CUtensorMap& left, const CUtensorMap& right,
                                     const GemmOperands& g, const GemmDecision& how,
                                     uint8_t* stages, GemmBarriers<C>& barriers) {
  using S = GemmShape<Loop, C>;
  detail::Ring<C::kStages> ring;
  // A band's rows of the left operand are read again for every strip of the right one, which is
  // read once for each band: if it is the larger one, it should leave the L2 before the other does.
  // (Not while it is being split: then its rows come from the L2 as well.)
  const bool leaves = (how.frozen || C::kTiles == 2) && g.columns > C::kBand * S::kBlockM;
  const uint64_t left_policy = hopper::cache_policy(false);
  const uint64_t right_policy = hopper::cache_policy(leaves);
  for (GemmWalk<C> walk(g); walk.locate(); walk.next()) {
    if (S::kSplits && how.on_the_way(g)) detail::await_rows<C>(g, walk.column_tile);
    const GemmMatrix<C> matrix(g, walk.matrix);
    const detail::Place<Loop> left_at(g, matrix, g.left, g.rows);
    const detail::Place<Loop> right_at(g, matrix, g.right, g.columns);
#pragma unroll 1
    for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
      uint8_t* const to = stages + ring.stage * S::kStageBytes;
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t) {
        const bool last = t == C::kTiles - 1;
        hopper::Barrier& full = barriers.full[ring.stage][t];
        hopper::wait(barriers.empty[ring.stage][t], ring.phase ^ 1);
        hopper::arrive_expecting(full, S::kRightBytes + (last ? S::kLeftBytes : 0));
#pragma unroll
        for (int n = 0; n < (last ? S::kLeftShare : 0); n += split::kPanel) {
          const int row = walk.across() * S::kLeftShare + n;
          hopper::copy_box<C::kAcross>(
              to + row * S::kRowBytes, &left, full,
              left_at.template box<C::kLeft>(at, row / S::kBlockM,
                                             walk.row_tile * S::kBlockM + row % S::kBlockM),
              left_policy);
        }
#pragma unroll
        for (int n = 0; n < S::kRightShare; n += split::kPanel) {
          const int row = walk.down() * S::kRightShare + n;
          hopper::copy_box<C::kDown>(
              to + S::kLeftBytes + t * S::kRightBytes + row * S::kRowBytes, &right, full,
              right_at.template box<C::kRight>(
                  at, row / C::kBlockN, (walk.column_tile + t) * C::kBlockN + row % C::kBlockN),
              right_policy);
        }
      }
    }
  }
}

// Three warps: split rows of the right operand until there are none left. Whoever is free takes the
// next row, so that nobody waits for a block that is not running.
template <class Loop, class C>
__device__ __forceinline__ void split_rest(const GemmOperands& g, GemmRow& shared) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const split::Job job = g.right_job<C>(0);
  const auto rows = static_cast<unsigned>(g.right_rows());
  unsigned next = 0;  // the row after the current one; the first thread's alone
  const auto take = [&] {
    next = atomicAdd(g.progress, 1u);
    if (next < static_cast<unsigned>(g.columns)) {
      const auto* const from = static_cast<const float*>(g.right.at) + next * g.right.row;
      hopper::prefetch_bytes(from, static_cast<uint32_t>(g.depth) * 4);
    }
  };
  if (thread == 0) {
    take();
    shared.row = next;
  }
  SplittingWarps::sync();
  for (unsigned row = shared.row; row < rows; row = shared.row) {
    if (thread == 0) take();
    const auto* const from = static_cast<const float*>(g.right.at) + row * g.right.row;
    uint16_t* const to = split::planes_of<Loop::kPlanes>(job, 0, row, g.depth);
    const bool exists = row < static_cast<unsigned>(g.columns);
    const RowScale scale = split::split_row<SplittingWarps, Loop::kPlanes, true>(
        from, to, exists, g.depth, thread, shared.split);
    if (thread == 0 && exists) job.scales[row] = scale;
    hopper::fence_copy_engine();
    SplittingWarps::sync();
    if (thread == 0) {
      shared.row = next;
      detail::add_progress(g.progress + 1 + row / C::kBlockN);
    }
    SplittingWarps::sync();
  }
}

// A warpgroup, 1 or 2: multiplies its 64 rows of every tile and runs the program on the result.
template <class Loop, class P, class C>
__device__ __forceinline__ void consume(const GemmOperands& g, const typename P::Args& a,
                                        const uint8_t* stages, GemmBarriers<C>& barriers,
                                        Turned* turned, int warpgroup) {
  using S = GemmShape<Loop, C>;
  using Product = hopper::Product<Loop::kElement, C::kBlockN, S::kLeft, S::kRight>;
  constexpr uint64_t kLeftStep = hopper::kDepthStep<S::kLeft>;
  constexpr uint64_t kRightStep = hopper::kDepthStep<S::kRight>;
  constexpr bool kPair = Loop::kPlanes == 2;
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  const int lane = static_cast<int>(threadIdx.x % 32);
  detail::Ring<C::kStages> ring;

  // Right tile `t` of the stage.
  const auto multiply = [&](float (&d)[S::kAccumulators], int add, int t) {
    const uint8_t* const from = stages + ring.stage * S::kStageBytes;
    const uint64_t a0 =
        hopper::tile_descriptor<S::kLeft>(from + (warpgroup - 1) * 64 * S::kRowBytes);
    const uint64_t b0 =
        hopper::tile_descriptor<S::kRight>(from + S::kLeftBytes + t * S::kRightBytes);
    constexpr uint64_t kLeftPlane = S::kBlockM * S::kRowBytes / 16;
    constexpr uint64_t kRightPlane = C::kBlockN * S::kRowBytes / 16;
    hopper::wait(barriers.full[ring.stage][t], ring.phase);
    if (t == 0 && C::kTiles > 1) hopper::wait(barriers.full[ring.stage][C::kTiles - 1], ring.phase);
    hopper::pin(d);
    hopper::begin_products();
    if constexpr (kPair) {  // small terms first
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Product::run(d, a0 + kLeftPlane + kLeftStep * s, b0 + kRightStep * s, add | s);
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Product::run(d, a0 + kLeftStep * s, b0 + kRightPlane + kRightStep * s, 1);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s)
      Product::run(d, a0 + kLeftStep * s, b0 + kRightStep * s, kPair | add | s);
    hopper::commit_products();
  };
  // A part of a stage has been read.
  const auto release = [&](int stage, int t) {
    if (lane < C::kCluster) hopper::arrive_at(barriers.empty[stage][t], lane);
  };

  // What the epilogue will read for each column, 32 columns to a lane. The right operand's scales
  // may be new: whoever sees the tile's first stage sees them too.
  const auto touch_columns = [&](const GemmMatrix<C>& matrix, int first) {
    hopper::wait(barriers.full[ring.stage][0], ring.phase);
    const int column = first + lane * 32;
    if (warp != 0 || lane * 32 >= C::kTiles * C::kBlockN || column >= g.columns) return;
    P::touch(a, column);
    if constexpr (Loop::kScaled) {
      const RowScale* const scales = matrix.right_scales(g) + column;
      touch(scales);
      if (column + 16 < g.columns) touch(scales + 16);
    }
  };

  if (Loop::kPromotes && warpgroup == 2) hopper::arrive_threads<256>(1);
  for (GemmWalk<C> walk(g); walk.locate(); walk.next()) {
    float sum[C::kTiles][S::kAccumulators];
    const GemmMatrix<C> matrix(g, walk.matrix);
    if (C::kBatched && walk.row_tile * S::kBlockM + (warpgroup - 1) * 64 >= g.rows) {
      // None of the matrix's rows is this warpgroup's: it lets the stages go by.
      for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t) {
          if constexpr (Loop::kPromotes) {
            hopper::sync_threads<256>(warpgroup);
            hopper::arrive_threads<256>(3 - warpgroup);
          }
          hopper::wait(barriers.full[ring.stage][t], ring.phase);
          release(ring.stage, t);
        }
      }
      continue;
    }
    touch_columns(matrix, walk.column_tile * C::kBlockN);
    if constexpr (Loop::kPromotes) {
      float d[S::kAccumulators];
#pragma unroll
      for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < S::kAccumulators; ++i) sum[t][i] = 0.0f;
      }
      for (int at = 0; at < g.depth; at += S::kDepth, ring.next()) {
#pragma unroll
        for (int t = 0; t < C::kTiles; ++t) {
          hopper::sync_threads<256>(warpgroup);
          multiply(d, 0, t);
          hopper::arrive_threads<256>(3 - warpgroup);
          hopper::wait_products<0>();
          hopper::pin(d);
          release(ring.stage, t);
#pragma unroll
          for (int i = 0; i < S::kAccumulators; ++i) sum[t][i] += d[i];
        }
      }
    } else {
      int before = ring.stage;
      multiply(sum[0], 0, 0);
      ring.next();
      for (int at = S::kDepth; at < g.depth; at += S::kDepth, ring.next()) {
        multiply(sum[0], 1, 0);
        hopper::wait_products<1>();
        release(before, 0);
        before = ring.stage;
      }
      hopper::wait_products<0>();
      hopper::pin(sum[0]);
      release(before, 0);
    }
    const int64_t warp_row = int64_t{walk.row_tile} * S::kBlockM + (warpgroup - 1) * 64 + warp * 16;
    // One copy of the code serves both tiles: a second one would have to be fetched as well.
#pragma unroll 1
    for (int t = 0; t < C::kTiles; ++t) {
      const int first = (walk.column_tile + t) * C::kBlockN;
      if (warp_row < g.rows && first < g.columns) {
        if constexpr (Loop::kScaled) {
          ColumnDoubt doubt;
          scale_columns<P, C>(sum[0], doubt, matrix.right_scales(g), first);
          settle<C>(sum[0], doubt, g, matrix, warp_row, first);
        }
        const int64_t before = matrix.at * g.rows;
        Epilogue<P, C> epilogue{a, before + warp_row + lane / 4, before + g.rows, first};
        if constexpr (Epilogue<P, C>::kTurns) {
          epilogue.turn(sum[0], turned[threadIdx.x / 32 - 4]);
        } else {
          epilogue.run(sum[0]);
        }
      }
      if constexpr (C::kTiles == 2) {
#pragma unroll
        for (int i = 0; i < S::kAccumulators; ++i) sum[0][i] = sum[1][i];
      }
    }
  }
}

template <class Loop, class P, class C>
__global__ void __launch_bounds__(GemmShape<Loop, C>::kThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
                const GemmOperands g, const GemmDecision how, const typename P::Args a) {
#ifdef KW_HOPPER
  using S = GemmShape<Loop, C>;
  extern __shared__ uint8_t raw[];
  __shared__ GemmBarriers<C> barriers;
  __shared__ GemmRow row;
  __shared__ Turned turned[Epilogue<P, C>::kTurns ? 8 : 1];
  uint8_t* const stages = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
  if (threadIdx.x == 0) {
    hopper::prefetch(&left);
    hopper::prefetch(&right);
    for (int s = 0; s < C::kStages; ++s) {
      for (int t = 0; t < C::kTiles; ++t) {
        hopper::init(barriers.full[s][t], 1);
        hopper::init(barriers.empty[s][t], 8 * C::kCluster);  // the consuming warps of the cluster
      }
    }
    hopper::publish_barriers();
  }
  hopper::sync_cluster();
  await_turn();
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == 0) {
    hopper::give_registers<S::kFeederRegisters>();
    if (threadIdx.x == 0) {
      feed<Loop, C>(left, right, g, how, stages, barriers);
    } else if (S::kSplits && threadIdx.x >= 32 && how.on_the_way(g)) {
      split_rest<Loop, C>(g, row);
    }
  } else {
    hopper::take_registers<S::kConsumerRegisters>();
    consume<Loop, P, C>(g, a, stages, barriers, turned, warpgroup);
  }
  // No block may leave while another one still signals its barriers or delivers to it.
  hopper::sync_cluster();
#endif
}

namespace detail {

// All that a tensor map is made from, besides what a loop knows.
struct MapKey {
  void* at;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];

  bool operator==(const MapKey& other) const {
    bool same = at == other.at;
    for (int i = 0; i < 4; ++i) same = same && sizes[i] == other.sizes[i];
    for (int i = 0; i < 3; ++i) same = same && strides[i] == other.strides[i];
    return same;
  }
};

// An operand as a tensor that is fetched in boxes of 64 rows, 128 bytes deep: what is in memory as
// (depth, row, inner batch, outer batch) or, if neighbours in memory are rows, as (row, depth,
// ...); what was split as (depth in a step, row in a panel, step and plane, panel of all matrices).
template <class Loop, hopper::Major kMajor>
bool describe(CUtensorMap& map, const Operand& x, const Batch& batch, const void* halves,
              int64_t rows, int64_t depth) {
  constexpr cuuint64_t kPanel = split::kPanel;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];  // of all axes but the first, in bytes
  const Batch each = x.distinct(batch);
  if constexpr (Loop::kScaled) {
    sizes[0] = sizes[1] = kPanel;
    sizes[2] = static_cast<cuuint64_t>(split::whole_panels(depth)) / kPanel * Loop::kPlanes;
    sizes[3] = static_cast<cuuint64_t>(split::whole_panels(rows) * each.count()) / kPanel;
    for (int i = 0; i < 3; ++i) strides[i] = (i == 0 ? Loop::kBytes : strides[i - 1]) * sizes[i];
  } else {
    constexpr bool kAlong = kMajor == hopper::Major::kDepth;
    const int64_t lengths[] = {kAlong ? depth : rows, kAlong ? rows : depth, each.inner,
                               each.outer};
    const int64_t apart[] = {kAlong ? x.row : x.depth, x.inner, x.outer};
    for (int i = 0; i < 4; ++i) sizes[i] = static_cast<cuuint64_t>(lengths[i]);
    for (int i = 0; i < 3; ++i) {  // an axis of one has no stride to speak of
      strides[i] = sizes[i + 1] == 1 ? 16 : static_cast<cuuint64_t>(apart[i]) * Loop::kBytes;
    }
  }
  MapKey key{const_cast<void*>(Loop::kScaled ? halves : x.at), {}, {}};
  for (int i = 0; i < 4; ++i) key.sizes[i] = sizes[i];
  for (int i = 0; i < 3; ++i) key.strides[i] = strides[i];
  thread_local Recent<MapKey, CUtensorMap> known;  // kept while addresses and sizes stay
  return known.find(key, map, [](const MapKey& k, CUtensorMap& made) {
    const cuuint32_t box[] = {128 / Loop::kBytes, kPanel, 1, 1};
    const cuuint32_t step[] = {1, 1, 1, 1};
    const hopper::EncodeMap encode = hopper::encode_map();
    return encode != nullptr &&
           encode(&made, Loop::kMapType, 4, k.at, k.sizes, k.strides, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  });
}

// Splits the operands, of the right one the rows that are wanted early.
template <class Loop, class C>
cudaError_t split_operands(const GemmOperands& g, const GemmDecision& how, cudaStream_t stream) {
  constexpr bool kLeftAlong = C::kLeft == hopper::Major::kDepth;
  constexpr bool kRightAlong = C::kRight == hopper::Major::kDepth;
  const int64_t all = g.right_rows() * g.right.distinct(g.batch).count();
  const bool on_the_way = GemmShape<Loop, C>::kSplits && how.tiles == 1 && how.on_the_way(g);
  const split::Job left = g.left_job();
  const split::Job right = g.right_job<C>(how.frozen ? 0 : on_the_way ? how.early : all);
  const int tiles = (g.columns + C::kBlockN * C::kCluster - 1) / (C::kBlockN * C::kCluster);
  const split::Progress progress{g.progress, on_the_way ? 1 + tiles * C::kCluster : 0, C::kBlockN};
  bool beside = false;
  if constexpr (!kLeftAlong) {
    const cudaError_t error = split::run_across<Loop::kPlanes>(left, g.depth, stream);
    if (error != cudaSuccess) return error;
    beside = true;
  }
  if constexpr (!kRightAlong) {
    const cudaError_t error = split::run_across<Loop::kPlanes>(right, g.depth, stream, beside);
    if (error != cudaSuccess) return error;
    beside = beside || right.count > 0;
  }
  const split::Along<Loop::kPlanes, C::kBatched, C::kDepth> along{
      kLeftAlong ? left : split::Job{},
      kRightAlong ? right : split::Job{},
      g.depth,
      progress,
      stream,
      beside};
  return along.run();
}

}  // namespace detail

template <class Loop, class P, class Group>
cudaError_t multiply(const GemmOperands& g, const GemmDecision& how, const typename P::Args& a,
                     cudaStream_t stream) {
  using S = GemmShape<Loop, Group>;
  constexpr int kTurned = Epilogue<P, Group>::kTurns ? 8 * sizeof(Turned) : 0;
  static_assert(Group::kBlockM == S::kBlockM && S::kShared + kTurned <= 226 * 1024,
                "the tile must fit");
  static_assert(S::kLeftShare % split::kPanel == 0 && S::kRightShare % split::kPanel == 0 &&
                    Group::kBlockN % split::kPanel == 0,
                "whole boxes");
  static_assert(Group::kBand % Group::kDown == 0, "a cluster must not reach into the next band");
  CUtensorMap left;
  CUtensorMap right;
  if (!detail::describe<Loop, Group::kLeft>(left, g.left, g.batch, g.left_halves, g.rows,
                                            g.depth) ||
      !detail::describe<Loop, Group::kRight>(right, g.right, g.batch, g.right_halves, g.columns,
                                             g.depth)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = gemm_kernel<Loop, P, Group>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), S::kShared);
  if (error != cudaSuccess) return error;
  const Grid grid{static_cast<unsigned>(how.clusters * Group::kCluster), S::kThreads, stream,
                  S::kShared, Group::kCluster};
  return launch(kernel, grid, left, right, g, how, a);
}

template <class Loop, class P, class C, class Layout = Plain>
cudaError_t gemm(const GemmOperands& g, const GemmDecision& how, const typename P::Args& a,
                 cudaStream_t stream) {
  using One = GemmGroup<C, 1, Layout>;
  static_assert(One::kVec < 4 || Loop::kScaled, "only rows that are split can be interleaved");
  if (g.rows == 0 || g.batch.count() == 0) return cudaSuccess;
  if constexpr (Loop::kScaled) {
    const cudaError_t error = detail::split_operands<Loop, One>(g, how, stream);
    if (error != cudaSuccess) return error;
  }
  if constexpr (Loop::kPromotes && One::kCluster == 2 && One::kBlockN == 128) {
    if (how.tiles == 2) return multiply<Loop, P, GemmGroup<C, 2, Layout>>(g, how, a, stream);
  }
  return multiply<Loop, P, One>(g, how, a, stream);
}

}  // namespace kw
