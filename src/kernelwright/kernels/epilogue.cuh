// A row program on a tile of accumulators, while they are still in registers.
//
// In the layout of Hopper's matrix products four neighbouring lanes (a quad) share a row, and each
// holds two of every eight columns, or, with interleaved columns (split.cuh), four of every
// sixteen. So a segment whose length is a multiple of eight or sixteen lies in one quad: its
// reductions are register sums and two shuffles. Stages over the whole row are combined over the
// tile's columns alone and stored as partial results, one per row and tile; a small second kernel
// finishes them. A program that works on single elements, in rows that no vector divides, goes
// through shared memory instead: a lane has one column, and a warp stores 32 of a row at once.
// Besides what program.cuh says, the program provides
//   P::kColumns                                   columns of the whole product
//   P::touch(a, column)                           brings operands that have a value for each column
//                                                 into the cache while the product is running
//   P::begin(fields, product)                     takes the product's lanes in place of a load
//   P::kByTile                                    whether stages over the whole row go on with what
//                                                 they gave for this tile; tiles fill the row then
//   P::store_partial(Stage<I>, total, a, {row, tile})   for each stage over the whole row
#pragma once

#include <cuda_runtime.h>

#include "reduce.cuh"

namespace kw {

// Reads an element for the sake of its cache line.
template <class T>
KW_FN void touch(const T* at) {
#ifdef __CUDA_ARCH__
  unsigned unused;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(unused) : "l"(at));
#else
  (void)at;
#endif
}

// The column, counted from the tile's first one, of an accumulator in this lane of the quad. With
// four neighbours to a thread the columns are interleaved (split::interleaved).
template <class C>
__host__ __device__ constexpr int column_of(int index, int quad) {
  const int eight = index / 4;
  const int at = index % 2;
  return C::kVec == 4 ? eight / 2 * 16 + quad * 4 + eight % 2 * 2 + at : eight * 8 + quad * 2 + at;
}

// A warp's room to turn sixteen rows of 32 columns around.
struct Turned {
  static constexpr int kColumns = 32;
  float at[16][kColumns + 1];
};

template <class P, class C>
struct Epilogue {
  // Whether columns go to lanes.
  static constexpr bool kTurns = C::kVec == 1 && P::kStages == 0 && !P::kStoresSegments;
  static constexpr int V = C::kVec;
  static constexpr int kSpan = V == 4 ? 16 : 8;  // columns of a quad's neighbouring accumulators
  static constexpr bool kWholeSegments = P::kSegment != 0 || P::kByTile;
  static constexpr int kSegment = P::kByTile ? C::kBlockN : P::kSegment ? P::kSegment : kSpan;
  static constexpr int kSegments = C::kBlockN / kSegment;
  static constexpr int kChunks = kSegment / (4 * V);
  static constexpr int kTotals = P::kStages ? P::kStages : 1;
  static_assert(C::kBlockN % kSegment == 0 && kSegment % kSpan == 0, "segments must fit the tile");
  static_assert(!kWholeSegments || P::kColumns % kSegment == 0, "segments must fill the row");

  const typename P::Args& a;
  int64_t row;   // that of this quad
  int64_t rows;  // of the whole product
  int first;     // the tile's first column
  int quad = static_cast<int>(threadIdx.x % 4);

  // Where lane `v` of a chunk is among the first row's accumulators.
  __host__ __device__ static constexpr int accumulator(int chunk, int v) {
    const int n = chunk * V + v;
    return n / 2 * 4 + n % 2;
  }

  __device__ __forceinline__ static int column(int start, int chunk, int quad) {
    return start + column_of<C>(accumulator(chunk, 0), quad);
  }

  // Without segments the last columns of a row may end inside of a tile's eight.
  template <bool kWhole>
  __device__ __forceinline__ bool inside(int start, int chunk) const {
    return kWhole || kWholeSegments || column(start, chunk, quad) + V <= P::kColumns;
  }

  // The thread's two rows, `row` and eight further down, go through a segment together: what they
  // read is the same, and one row's arithmetic hides the other one's latency.
  struct Segment {
    typename P::template Fields<V> f[2][kChunks];
    typename P::template Scalars<1> s[2];
  };

  template <bool kWhole, int I>
  __device__ __forceinline__ void stages(Segment& segment, float (&totals)[2][kTotals],
                                         const int64_t (&at_row)[2], int start) {
    if constexpr (I < P::kStages) {
      constexpr Combine kOp = P::kCombine[I];
      constexpr bool kFinished = P::kOverSegment[I] || P::kByTile;
      float total[2];
      KW_LANES
      for (int i = 0; i < 2; ++i) total[i] = kFinished ? identity<kOp>() : totals[i][I];
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (!inside<kWhole>(start, c)) continue;
        KW_LANES
        for (int i = 0; i < 2; ++i) {
          const Cursor at{at_row[i], column(start, c, quad)};
          const Vec<V> x = P::contribution(Stage<I>{}, segment.f[i][c], segment.s[i], a, at);
          total[i] = combine<kOp>(total[i], combine_lanes<kOp>(x));
        }
      }
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        if constexpr (kFinished) {
          total[i] = reduce_threads<kOp, 4>(total[i]);
          P::finish(Stage<I>{}, segment.s[i], Vec<1>{{total[i]}}, a);
        }
        totals[i][I] = total[i];
      }
      stages<kWhole, I + 1>(segment, totals, at_row, start);
    }
  }

  template <int I>
  __device__ __forceinline__ void partials(const float (&totals)[kTotals], bool live,
                                           int64_t at_row) {
    if constexpr (I < P::kStages) {
      if constexpr (!P::kOverSegment[I]) {
        const float total = P::kByTile ? totals[I] : reduce_threads<P::kCombine[I], 4>(totals[I]);
        if (live && quad == 0) {
          P::store_partial(Stage<I>{}, total, a, Cursor{at_row, first / C::kBlockN});
        }
      }
      partials<I + 1>(totals, live, at_row);
    }
  }

  template <int I>
  __device__ __forceinline__ static void begin_totals(float (&totals)[kTotals]) {
    if constexpr (I < P::kStages) {
      totals[I] = identity<P::kCombine[I]>();
      begin_totals<I + 1>(totals);
    }
  }

  // Each lane's accumulators of 32 columns become one column of sixteen rows.
  template <int kCount>
  __device__ __forceinline__ void turn(const float (&d)[kCount], Turned& room) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int64_t warp_row = row - lane / 4;
    const int height = static_cast<int>(rows - warp_row < 16 ? rows - warp_row : 16);
#pragma unroll
    for (int part = 0; part < kCount / 16; ++part) {
      const int column = first + part * Turned::kColumns + lane;
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        room.at[lane / 4 + 8 * (k / 2 % 2)][column_of<C>(k, quad)] = d[part * 16 + k];
      }
      __syncwarp();
      if (column >= P::kColumns) continue;
#pragma unroll 8
      for (int r = 0; r < height; ++r) {
        typename P::template Fields<1> f;
        typename P::template Scalars<1> s;
        P::begin(f, Vec<1>{{room.at[r][lane]}});
        P::store_elements(f, s, a, Cursor{warp_row + r, column});
      }
    }
  }

  // Nearly all tiles are whole, and then nothing stands between their segments: the compiler weaves
  // them into each other. A branch for every store would make them wait for one another.
  template <int kCount>
  __device__ __forceinline__ void run(const float (&d)[kCount]) {
    const int64_t warp_row = row - threadIdx.x % 32 / 4;
    if (warp_row + 16 <= rows && first + C::kBlockN <= P::kColumns) {
      run_tile<true>(d);
    } else {
      run_tile<false>(d);
    }
  }

  template <bool kWhole, int kCount>
  __device__ __forceinline__ void run_tile(const float (&d)[kCount]) {
    const bool live[2] = {kWhole || row < rows, kWhole || row + 8 < rows};
    // Quads without a row repeat one and store nothing: everyone takes part in the shuffles.
    const int64_t at_row[2] = {live[0] ? row : rows - 1, live[1] ? row + 8 : rows - 1};
    float totals[2][kTotals];
    begin_totals<0>(totals[0]);
    begin_totals<0>(totals[1]);
    KW_LANES
    for (int q = 0; q < kSegments; ++q) {
      const int start = first + q * kSegment;
      if (!kWhole && start >= P::kColumns) continue;
      Segment segment;
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        KW_LANES
        for (int c = 0; c < kChunks; ++c) {
          Vec<V> product;
          KW_LANES
          for (int v = 0; v < V; ++v) {
            product.lanes[v] = d[accumulator(q * kChunks + c, v) + 2 * i];
          }
          P::begin(segment.f[i][c], product);
        }
      }
      stages<kWhole, 0>(segment, totals, at_row, start);
      KW_LANES
      for (int i = 0; i < 2; ++i) {
        if (live[i]) store<kWhole>(segment, at_row[i], start, i);
      }
    }
    partials<0>(totals[0], live[0], at_row[0]);
    partials<0>(totals[1], live[1], at_row[1]);
  }

  template <bool kWhole>
  __device__ __forceinline__ void store(Segment& segment, int64_t at_row, int start, int i) {
    if constexpr (P::kStoresElements) {
      KW_LANES
      for (int c = 0; c < kChunks; ++c) {
        if (!inside<kWhole>(start, c)) continue;
        P::store_elements(segment.f[i][c], segment.s[i], a, Cursor{at_row, column(start, c, quad)});
      }
    }
    if constexpr (P::kStoresSegments) {
      if (quad == 0) P::store_segment(segment.s[i], a, Cursor{at_row, start});
    }
  }
};

}  // namespace kw
