// float32 rows as float16 numbers that the tensor cores multiply.
//
// A row is scaled by a power of two that puts its largest magnitude into [2^14, 2^15). With two
// planes each element is hi + lo, hi = float16(x) and lo = float16(x - hi): 22 bits or more for
// elements down to 2^-17 of the largest, enough for float32 products. With one plane it is hi
// alone: the 11 bits of TF32, for elements down to 2^-28 of the largest. What smaller elements lose
// is summed up as the row's residue, so that the GEMM can bound the error that the loss makes in
// each element of its result and compute the few doubtful ones again. After a NaN, an infinity or a
// largest magnitude beyond 2^+-60 the scale is NaN: all that the row meets is computed again.
//
// Rows that lie along memory are split by teams of warps, each team a row at a time, in registers.
// Where neighbours in memory belong to different rows, a cluster of blocks takes 32 rows: each
// block brings its part of their depth into shared memory, the blocks agree on the rows' largest
// magnitudes, and each stores its part as rows.
#pragma once

#include <cuda_runtime.h>

#include "half.cuh"
#include "hopper.cuh"
#include "launch.cuh"
#include "reduce.cuh"

namespace kw {

// What the result owes to a row: `scale` undoes the power of two; `doubt`, times the other row's
// scale, is the magnitude below which an element of the result is computed again.
struct alignas(8) RowScale {
  float scale;
  float doubt;
};

// The matrices of a batched product are counted along two axes.
struct Batch {
  int outer = 1;
  int inner = 1;

  __host__ __device__ int64_t count() const { return int64_t{outer} * inner; }
};

// Where the matrices of an operand lie: from `at` on, so many elements from one outer batch, inner
// batch, row and depth to the next. Along a batch axis of stride 0 they are one and the same.
struct Operand {
  const void* at;
  int64_t outer;
  int64_t inner;
  int64_t row;
  int64_t depth;

  // The matrices that differ, which are all that is split.
  __host__ __device__ Batch distinct(const Batch& all) const {
    return {outer == 0 ? 1 : all.outer, inner == 0 ? 1 : all.inner};
  }

  // Which of them is multiplied in this batch.
  __device__ __forceinline__ int64_t index(const Batch& all, int outer_at, int inner_at) const {
    return int64_t{outer == 0 ? 0 : outer_at} * (inner == 0 ? 1 : all.inner) +
           (inner == 0 ? 0 : inner_at);
  }

  __device__ __forceinline__ const float* floats(int outer_at, int inner_at) const {
    return static_cast<const float*>(at) + outer_at * outer + inner_at * inner;
  }

  // Whether four neighbours of a row of float32 can be read at once, as far as that is up to where
  // the rows begin.
  __host__ __device__ bool aligned() const {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && (outer | inner | row) % 4 == 0;
  }
};

namespace split {

// Scaled elements from here on lose nothing that counts: at most 2^-22 or 2^-11 of themselves.
template <int kPlanes>
inline constexpr float kSmallest = kPlanes == 2 ? 0x1p-3f : 0x1p-14f;
// How large an error may be: the residue times 2^15 (the other row's largest magnitude) against
// 2^-20 or 2^-11 of the result.
template <int kPlanes>
inline constexpr float kDoubtPerResidue = kPlanes == 2 ? 0x1p35f : 0x1p26f;

// The largest magnitude and the smallest one that is not zero, as bits: they order like the values,
// and NaN is the largest. `least` is one less than the bits, so that a zero is out of the way.
struct Extent {
  uint32_t most = 0;
  uint32_t least = 0xffffffffu;

  __device__ __forceinline__ void add(float x) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    most = max(most, bits);
    least = min(least, bits - 1);
  }
  __device__ __forceinline__ void add(float4 x) {
    add(x.x);
    add(x.y);
    add(x.z);
    add(x.w);
  }
};

struct Scaling {
  float up;
  float down;
  bool exact;

  __device__ __forceinline__ explicit Scaling(uint32_t most) {
    const int exponent = static_cast<int>(most >> 23) - 127;
    exact = most != 0 && (exponent > 60 || exponent < -60);
    const int shift = most == 0 || exact ? 0 : 14 - exponent;
    up = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
    // A row of zeros has the scale zero: whatever it meets, nothing of it was lost.
    down = most == 0 ? 0.0f : __uint_as_float(static_cast<uint32_t>(127 - shift) << 23);
  }

  // Whether an element among these loses what counts.
  template <int kPlanes>
  __device__ __forceinline__ bool loses(const Extent& extent) const {
    return extent.least < __float_as_uint(kSmallest<kPlanes> * down) - 1;
  }

  template <int kPlanes>
  __device__ __forceinline__ RowScale scale(float residue) const {
    if (exact) return {__builtin_nanf(""), 0.0f};
    return {down, residue * down * kDoubtPerResidue<kPlanes>};
  }
};

// Two neighbours in packed planes, and what is left of them.
template <int kPlanes>
__device__ __forceinline__ float2 split_pair(float2 x, uint32_t (&planes)[kPlanes]) {
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(planes[p]) : "f"(x.y), "f"(x.x));
    x.x -= to_float(half_t{static_cast<uint16_t>(planes[p])});
    x.y -= to_float(half_t{static_cast<uint16_t>(planes[p] >> 16)});
  }
  return x;
}

template <int kPlanes>
__device__ __forceinline__ float lost(float2 x) {
  uint32_t planes[kPlanes];
  const float2 rest = split_pair<kPlanes>(x, planes);
  const float first = fabsf(x.x) < kSmallest<kPlanes> ? fabsf(rest.x) : 0.0f;
  return first + (fabsf(x.y) < kSmallest<kPlanes> ? fabsf(rest.y) : 0.0f);
}

template <int kPlanes>
__device__ __forceinline__ float lost(float4 x, float up) {
  return lost<kPlanes>(float2{x.x * up, x.y * up}) + lost<kPlanes>(float2{x.z * up, x.w * up});
}

__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
  return __reduce_max_sync(0xffffffff, x);
}

// How the planes lie in memory: in panels of 64 rows, a panel in steps of 64 of depth, a step in
// planes. So all that the product fetches of 64 rows for one stage is one run of memory, and the
// next stage's follows it.
inline constexpr int kPanel = 64;

__host__ __device__ constexpr int64_t whole_panels(int64_t count) {
  return (count + kPanel - 1) / kPanel * kPanel;
}

// Room for a matrix, in float16 numbers.
__host__ __device__ constexpr int64_t room(int64_t rows, int64_t depth, int planes) {
  return whole_panels(rows) * whole_panels(depth) * planes;
}

// Where the first plane of an element is; the next one is kPanel * kPanel further on.
template <int kPlanes>
__device__ __forceinline__ int64_t place(int64_t row, int at, int depth) {
  return row / kPanel * room(kPanel, depth, kPlanes) + row % kPanel * kPanel +
         at / kPanel * (kPlanes * kPanel * kPanel) + at % kPanel;
}

// In the layout of Hopper's products a thread has columns 0, 1 and 8, 9 of sixteen, or 2, 3 and 10,
// 11, and so on. If the rows of the right operand are stored in this order, these are four
// neighbours: loads and stores of the epilogue are twice as wide.
__host__ __device__ constexpr int64_t interleaved(int64_t row) {
  return (row & ~int64_t{15}) | (row >> 1 & 1) << 3 | (row >> 2 & 3) << 1 | (row & 1);
}

// Four neighbours of a row: vector access where the row allows it, zeros behind its end.
template <bool kVector>
__device__ __forceinline__ float4 load_four(const float* row, int at, int depth) {
  if constexpr (kVector) {
    return at < depth ? *reinterpret_cast<const float4*>(row + at) : float4{};
  } else {
    float4 x{};
    if (at < depth) x.x = row[at];
    if (at + 1 < depth) x.y = row[at + 1];
    if (at + 2 < depth) x.z = row[at + 2];
    if (at + 3 < depth) x.w = row[at + 3];
    return x;
  }
}

// Four neighbours into the planes.
template <int kPlanes>
__device__ __forceinline__ void store_four(float4 x, float up, uint16_t* to) {
  uint32_t low[kPlanes];
  uint32_t high[kPlanes];
  split_pair<kPlanes>(float2{x.x * up, x.y * up}, low);
  split_pair<kPlanes>(float2{x.z * up, x.w * up}, high);
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    *reinterpret_cast<uint2*>(to + p * (kPanel * kPanel)) = {low[p], high[p]};
  }
}

// An operand to split: matrices of `rows`, of which each fills whole panels; rows behind its end
// are zeros. `count` of the rows are split, counted with these.
struct Job {
  Operand x;
  Batch batch;
  uint16_t* halves;
  RowScale* scales;
  int64_t rows;
  int64_t count;
  bool interleave;
};

// A row of a job: of which matrix, and whether it is one or lies behind the end. Matrices follow
// one another, each in whole panels.
template <bool kBatched>
struct Row {
  int matrix = 0;
  int at;
  bool exists;

  __device__ __forceinline__ Row(const Job& job, int64_t counted) : at(static_cast<int>(counted)) {
    if constexpr (kBatched) {
      const auto whole = static_cast<unsigned>(whole_panels(job.rows));
      matrix = static_cast<int>(static_cast<unsigned>(counted) / whole);
      at -= matrix * static_cast<int>(whole);
    }
    exists = at < job.rows;
  }

  __device__ __forceinline__ const float* from(const Job& job) const {
    const int outer = kBatched ? matrix / job.batch.inner : 0;
    return job.x.floats(outer, matrix - outer * job.batch.inner) + at * job.x.row;
  }

  __device__ __forceinline__ RowScale* scale(const Job& job) const {
    return job.scales + matrix * job.rows + at;
  }
};

// Where a row's planes begin.
template <int kPlanes>
__device__ __forceinline__ uint16_t* planes_of(const Job& job, int64_t matrix, int64_t row,
                                               int depth) {
  return job.halves + matrix * room(job.rows, depth, kPlanes) +
         place<kPlanes>(job.interleave ? interleaved(row) : row, 0, depth);
}

// Who splits a row: so many threads, each with room for kKept times four elements in registers, and
// a barrier for all of them. Rows that fit are read once. A block of 512 threads is one team or
// several.
template <int kWarps>
struct Team {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kKept = 4;
  static constexpr int kTeams = 512 / kThreads;
  static __device__ __forceinline__ void sync() {
    if constexpr (kTeams == 1) {
      __syncthreads();
    } else {
      hopper::sync_threads<kThreads>(1 + static_cast<int>(threadIdx.x) / kThreads);
    }
  }
};

template <class Team>
struct Shared {
  uint32_t mosts[Team::kThreads / 32];
  float residues[Team::kThreads / 32];
};

// Splits the row at `from` into the planes at `to`; the first thread is given its scale.
template <class Team, int kPlanes, bool kVector>
__device__ __forceinline__ RowScale split_row(const float* from, uint16_t* to, bool exists,
                                              int depth, int thread, Shared<Team>& shared) {
  constexpr int kStep = Team::kThreads * 4;
  constexpr int kRest = Team::kKept * kStep;
  const int width = static_cast<int>(whole_panels(depth));
  to += place<kPlanes>(0, thread * 4, depth);
  // Whole steps of depth further on, this many times as far in the planes.
  constexpr int kApart = kPlanes * kPanel;
  static_assert(kStep % kPanel == 0, "a thread stays at its place within a step");
  if (!exists) depth = 0;
  float4 kept[Team::kKept];
  Extent extent;
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    kept[c] = load_four<kVector>(from, c * kStep + thread * 4, depth);
  }
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) extent.add(kept[c]);
#pragma unroll 1
  for (int at = kRest + thread * 4; at < depth; at += kStep) {
    extent.add(load_four<kVector>(from, at, depth));
  }
  uint32_t most = warp_max(extent.most);
  if (thread % 32 == 0) shared.mosts[thread / 32] = most;
  Team::sync();
#pragma unroll
  for (int w = 0; w < Team::kThreads / 32; ++w) most = max(most, shared.mosts[w]);
  const Scaling scaling(most);
#pragma unroll
  for (int c = 0; c < Team::kKept; ++c) {
    if (c * kStep + thread * 4 < width) {
      store_four<kPlanes>(kept[c], scaling.up, to + c * kStep * kApart);
    }
  }
#pragma unroll 1
  for (int first = kRest; first + thread * 4 < width; first += kStep) {
    const float4 x = load_four<kVector>(from, first + thread * 4, depth);
    store_four<kPlanes>(x, scaling.up, to + int64_t{first} * kApart);
  }
  float residue = 0.0f;
  if (scaling.loses<kPlanes>(extent)) {
#pragma unroll 1
    for (int at = thread * 4; at < depth; at += kStep) {
      residue += lost<kPlanes>(load_four<kVector>(from, at, depth), scaling.up);
    }
  }
  residue = reduce_threads<Combine::kSum, 32>(residue);
  if (thread % 32 == 0) shared.residues[thread / 32] = residue;
  Team::sync();
  if (thread != 0) return {};
  float total = 0.0f;
  for (int w = 0; w < Team::kThreads / 32; ++w) total += shared.residues[w];
  return scaling.scale<kPlanes>(total);
}

// How far the GEMM's right operand is: word 0 counts the rows that are taken, word 1 + t those of
// column tile t, `tile_rows` each, that are ready.
struct Progress {
  unsigned* words;
  int count;
  int tile_rows;
};

// A split waits for the kernel before it, or runs beside that one if it is a split too.
__device__ __forceinline__ void begin_split(bool beside) {
  if (beside) {
    let_in();
  } else {
    await_turn();
  }
}

__device__ __forceinline__ void end_split(bool beside) {
  if (beside) await_turn();
}

// Two jobs at once: both operands, or as much of them as lies along memory.
template <class Team, int kPlanes, bool kVector, bool kBatched>
__global__ void __launch_bounds__(512, kBatched ? 2 : 3)
    split_kernel(const Job first, const Job second, int depth, const Progress progress,
                 bool beside) {
  __shared__ Shared<Team> shared[Team::kTeams];
  const int team = Team::kTeams == 1 ? 0 : static_cast<int>(threadIdx.x) / Team::kThreads;
  const int thread = static_cast<int>(threadIdx.x) - team * Team::kThreads;
  const int64_t at = int64_t{blockIdx.x} * Team::kTeams + team;
  const auto split = [&](const Job& job, int64_t counted) {
    const Row<kBatched> row(job, counted);
    const RowScale scale = split_row<Team, kPlanes, kVector>(
        row.from(job), planes_of<kPlanes>(job, row.matrix, row.at, depth), row.exists, depth,
        thread, shared[team]);
    if (thread == 0 && row.exists) *row.scale(job) = scale;
  };
  begin_split(beside);
  if (at < first.count) {
    split(first, at);
  } else if (at < first.count + second.count) {
    split(second, at - first.count);
  }
  if (at == 0) {
    for (int i = thread; i < progress.count; i += Team::kThreads) {
      const int64_t ahead = second.count - int64_t{i - 1} * progress.tile_rows;
      const int64_t most = ahead < progress.tile_rows ? ahead : progress.tile_rows;
      progress.words[i] = static_cast<unsigned>(i == 0 ? second.count : most > 0 ? most : 0);
    }
  }
  end_split(beside);
}

// Up to here rows are short, and are not counted in Progress.
inline constexpr int kLongestShort = 512;
// A row of a known depth up to here fits the registers of a warp. Where there are many, warps are
// sooner done than teams, whose members wait for one another: 6304 rows of 3072 take 44 us instead
// of 51 on an H200, but 300 of 640 take 5.9 instead of 4.9.
inline constexpr int kLongestOfWarp = 3072;
inline constexpr int kManyRows = 4096;

// Rows so short that kLanes threads hold them, each kChunks times four elements: a thread has its
// places in several neighbouring rows, which are all on their way before the first is needed.
template <int kLanes, int kChunks>
struct Short {
  static constexpr int kStep = kLanes * 4;
  static constexpr int kHeld = kChunks * kStep;
  static constexpr int kRows = kChunks > 8 ? 1 : kChunks > 2 ? 2 : 4;
  static_assert(kPanel % kRows == 0, "of one matrix");
};

template <int kLanes, int kChunks, int kPlanes, bool kVector>
__global__ void __launch_bounds__(256)
    split_short_kernel(const Job first, const Job second, int depth, bool beside) {
  using S = Short<kLanes, kChunks>;
  const int thread = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  const int begin = thread % kLanes * 4;
  const int64_t at = int64_t{thread / kLanes} * S::kRows;
  begin_split(beside);
  const bool is_first = at < first.count;
  const Job job = is_first ? first : second;
  // Behind the end as well everyone takes part in the shuffles.
  const bool counts = at < first.count + second.count;
  const Row<true> row(job, !counts ? 0 : is_first ? at : at - first.count);
  const float* const from = row.from(job);
  float4 kept[S::kRows][kChunks];
#pragma unroll
  for (int n = 0; n < S::kRows; ++n) {
    const int length = row.at + n < job.rows ? depth : 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      kept[n][c] = load_four<kVector>(from + n * job.x.row, begin + c * S::kStep, length);
    }
  }
#pragma unroll
  for (int n = 0; n < S::kRows; ++n) {
    Extent extent;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) extent.add(kept[n][c]);
    uint32_t most = extent.most;
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      most = max(most, __shfl_xor_sync(0xffffffff, most, offset));
    }
    const Scaling scaling(most);
    const bool loses = scaling.loses<kPlanes>(extent);
    float residue = 0.0f;
    if (__any_sync(0xffffffff, loses)) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) residue += lost<kPlanes>(kept[n][c], scaling.up);
      residue = reduce_threads<Combine::kSum, kLanes>(residue);
    }
    if (!counts) continue;
    uint16_t* const to = planes_of<kPlanes>(job, row.matrix, row.at + n, depth);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int place_at = begin + c * S::kStep;
      if (place_at < whole_panels(depth)) {
        store_four<kPlanes>(kept[n][c], scaling.up, to + place<kPlanes>(0, place_at, depth));
      }
    }
    if (begin == 0 && row.at + n < job.rows) row.scale(job)[n] = scaling.scale<kPlanes>(residue);
  }
  end_split(beside);
}

// Splits what lies along memory. Rows that fit a few lanes or warps are not worth a whole
// block. With kDepth, the depth is known, and no other kernels are compiled.
template <int kPlanes, bool kBatched, int kDepth>
struct Along {
  Job first;
  Job second;
  int depth;
  Progress progress;
  cudaStream_t stream;
  bool beside = false;  // another split, which was launched before

  template <class Team, bool kVector>
  cudaError_t teams() const {
    const auto wanted = static_cast<unsigned>(first.count + second.count);
    const unsigned grid = (wanted + Team::kTeams - 1) / Team::kTeams;
    return launch(split_kernel<Team, kPlanes, kVector, kBatched>, Grid{grid, 512, stream}, first,
                  second, depth, progress, beside);
  }

  template <int kLanes, int kChunks, bool kVector>
  cudaError_t lanes() const {
    const int64_t teams = (first.count + second.count) / Short<kLanes, kChunks>::kRows;
    const auto grid = static_cast<unsigned>((teams * kLanes + 255) / 256);
    return launch(split_short_kernel<kLanes, kChunks, kPlanes, kVector>, Grid{grid, 256, stream},
                  first, second, depth, beside);
  }

  // Whether the depth may lie in (low, high].
  static constexpr bool possible(int low, int high) {
    return kDepth == 0 || (low < kDepth && kDepth <= high);
  }

  template <bool kVector>
  cudaError_t run() const {
    constexpr int kFour = Team<4>::kThreads * 4 * Team<4>::kKept;
    if constexpr (possible(0, 64)) {
      if (depth <= 64) return lanes<16, 1, kVector>();
    }
    if constexpr (possible(64, 128)) {
      if (depth <= 128) return lanes<32, 1, kVector>();
    }
    if constexpr (possible(128, 256)) {
      if (depth <= 256) return lanes<32, 2, kVector>();
    }
    if constexpr (possible(256, kLongestShort)) {
      if (depth <= kLongestShort) return lanes<32, 4, kVector>();
    }
    if constexpr (kDepth > kLongestShort && kDepth <= kLongestOfWarp) {
      const bool many = first.count + second.count >= kManyRows;
      if (many && progress.count == 0) return lanes<32, (kDepth + 127) / 128, kVector>();
    }
    if constexpr (possible(kLongestShort, kFour)) {
      if (depth <= kFour) return teams<Team<4>, kVector>();
    }
    if constexpr (kDepth == 0 || kDepth > kFour) return teams<Team<16>, kVector>();
    return cudaErrorInvalidValue;
  }

  cudaError_t run() const {
    if (first.count + second.count == 0) return cudaSuccess;
    if constexpr (kDepth % 4 == 0) {
      const bool vector = depth % 4 == 0 && (first.count == 0 || first.x.aligned()) &&
                          (second.count == 0 || second.x.aligned());
      if (vector) return run<true>();
    }
    return run<false>();
  }
};

// ---- rows that lie across memory
// -----------------------------------------------------------------

inline constexpr int kStrip = 32;  // rows of a cluster
inline constexpr int kLap = 512;   // of the depth, what a block has in shared memory
inline constexpr int kPitch = kStrip + 1;
inline constexpr int kStripWarps = 8;
inline constexpr int kMostTogether = 8;

// What the threads of a block, and then the blocks of a cluster, tell each other about the rows.
struct StripShared {
  uint32_t mosts[kStripWarps][kStrip];
  uint32_t leasts[kStripWarps][kStrip];
  uint32_t most[kStrip];
  uint32_t least[kStrip];
  uint32_t residue[kStrip];
  Extent extent[kStrip];  // of the whole rows
};

// A block's part of the depth of one strip, from `begin` to `end`.
struct Strip {
  const float* from;  // the first row
  int64_t apart;      // from one depth to the next
  int rows;           // that exist
  int depth;
  int begin;
  int end;

  // Brings a lap into shared memory. A lane has one row throughout, and so its extent.
  __device__ __forceinline__ void load(int lap, float* tile, Extent& extent) const {
    constexpr int kAhead = 16;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int first = warp; first < kLap && lap + first < end; first += kAhead * kStripWarps) {
      float x[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int at = lap + first + n * kStripWarps;
        x[n] = lane < rows && at < depth ? from[at * apart + lane] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        extent.add(x[n]);
        tile[(first + n * kStripWarps) * kPitch + lane] = x[n];
      }
    }
  }
};

template <int kPlanes>
__global__ void __launch_bounds__(32 * kStripWarps)
    split_across_kernel(const Job job, int depth, int together, bool beside) {
#ifdef KW_HOPPER
  extern __shared__ float tile[];
  __shared__ StripShared shared;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = hopper::cluster_rank();
  const int64_t strips = whole_panels(job.rows) / kStrip;  // of one matrix
  const int64_t at = blockIdx.x / together;
  const int64_t index = at / strips;
  const int64_t first_row = (at - index * strips) * kStrip;
  const auto outer = static_cast<int>(index / job.batch.inner);
  const int inner = static_cast<int>(index) - outer * job.batch.inner;
  const int width = static_cast<int>(whole_panels(depth));
  const int share = (width / kPanel + together - 1) / together * kPanel;
  const int64_t left = job.rows - first_row;
  const Strip strip{job.x.floats(outer, inner) + first_row,
                    job.x.depth,
                    static_cast<int>(left < kStrip ? left : kStrip),
                    depth,
                    rank * share,
                    min(width, (rank + 1) * share)};
  begin_split(beside);

  Extent own;
  int last = strip.begin;
#pragma unroll 1
  for (int lap = strip.begin; lap < strip.end; lap += kLap) {
    strip.load(lap, tile, own);
    last = lap;
  }
  shared.mosts[warp][lane] = own.most;
  shared.leasts[warp][lane] = own.least;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < kStripWarps; ++w) {
      own.most = max(own.most, shared.mosts[w][lane]);
      own.least = min(own.least, shared.leasts[w][lane]);
    }
    shared.most[lane] = own.most;
    shared.least[lane] = own.least;
  }
  hopper::sync_cluster();
  if (warp == 0) {
    for (int block = 0; block < together; ++block) {
      own.most = max(own.most, hopper::read_from(shared.most[lane], block));
      own.least = min(own.least, hopper::read_from(shared.least[lane], block));
    }
    shared.extent[lane] = own;
  }
  __syncthreads();

  // Sixteen lanes store 64 of the depth of a row; a warp has four rows.
  const int depth_at = lane % 16 * 4;
  int row[2];
  float up[2];
  bool loses[2];
  float residue[2] = {};
  uint16_t* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row[i] = warp * 4 + i * 2 + lane / 16;
    const Scaling scaling(shared.extent[row[i]].most);
    up[i] = scaling.up;
    loses[i] = scaling.loses<kPlanes>(shared.extent[row[i]]);
    to[i] = planes_of<kPlanes>(job, index, first_row + row[i], depth) + depth_at;
  }
#pragma unroll 1
  for (int lap = last; lap >= strip.begin; lap -= kLap) {
    if (lap != last) {
      Extent seen;
      __syncthreads();
      strip.load(lap, tile, seen);
      __syncthreads();
    }
#pragma unroll 2
    for (int step = 0; step < kLap && lap + step < strip.end; step += kPanel) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const x = tile + (step + depth_at) * kPitch + row[i];
        const float4 four{x[0], x[kPitch], x[2 * kPitch], x[3 * kPitch]};
        store_four<kPlanes>(four, up[i], to[i] + int64_t{lap + step} * (kPlanes * kPanel));
        if (loses[i]) residue[i] += lost<kPlanes>(four, up[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    residue[i] = reduce_threads<Combine::kSum, 16>(residue[i]);
    if (lane % 16 == 0) shared.residue[row[i]] = __float_as_uint(residue[i]);
  }
  hopper::sync_cluster();
  if (rank == 0 && warp == 0 && lane < strip.rows) {
    float total = 0.0f;
    for (int block = 0; block < together; ++block) {
      total += __uint_as_float(hopper::read_from(shared.residue[lane], block));
    }
    const Scaling scaling(shared.extent[lane].most);
    job.scales[index * job.rows + first_row + lane] = scaling.scale<kPlanes>(total);
  }
  hopper::sync_cluster();  // nobody leaves whom another one reads
  end_split(beside);
#endif
}

// All rows of the job.
template <int kPlanes>
cudaError_t run_across(const Job& job, int depth, cudaStream_t stream, bool beside = false) {
  constexpr int kBytes = kLap * kPitch * 4;
  constexpr int kEnough = 264;  // blocks, two for each multiprocessor
  const int64_t strips = job.count / kStrip;
  if (strips == 0) return cudaSuccess;
  int together = 1;
  while (together < kMostTogether && together * kPanel < depth &&
         (together * kLap < depth || strips * together < kEnough)) {
    together *= 2;
  }
  const auto kernel = split_across_kernel<kPlanes>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  if (error != cudaSuccess) return error;
  const Grid grid{static_cast<unsigned>(strips * together), 32 * kStripWarps, stream, kBytes,
                  static_cast<unsigned>(together)};
  return launch(kernel, grid, job, depth, together, beside);
}

}  // namespace split

// All of an operand: a weight that is split once and kept, the rows of a thin product.
template <int kPlanes, hopper::Major kMajor, bool kInterleave, int kDepth>
cudaError_t split_all(const Operand& x, const Batch& batch, void* halves, void* scales,
                      int64_t rows, int depth, cudaStream_t stream) {
  const Batch each = x.distinct(batch);
  const split::Job all{x,
                       each,
                       static_cast<uint16_t*>(halves),
                       static_cast<RowScale*>(scales),
                       rows,
                       split::whole_panels(rows) * each.count(),
                       kInterleave};
  if constexpr (kMajor == hopper::Major::kRow) {
    return split::run_across<kPlanes>(all, depth, stream);
  } else {
    return split::Along<kPlanes, false, kDepth>{all, {}, depth, {}, stream}.run();
  }
}

}  // namespace kw
