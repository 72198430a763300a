// left [rows, depth] times right [columns, depth] transposed, plus a bias, in float32 for 9 to 256
// rows on Hopper's tensor cores: about the time of reading `right` from memory once.
//
// The product is computed transposed: the rows of `right`, a weight, are the long side of the
// matrix instruction and come from registers, the few rows of `left` are its short side and come
// from shared memory. `left` is small and split before (split.cuh). Nobody else needs what a block
// reads of `right`, so it is split on its way through the registers and never stored:
//
//   copy engine   float32 tiles of `right`, 128 rows by 64 of depth, and the halves of `left`, each
//                 into a ring of stages of its own;
//   two warpgroups   take 64 rows of `right` each: load, find the largest magnitude of a row's 64
//                 numbers, scale by a power of two, part into float16 hi and lo, multiply. The
//                 tensor cores truncate when they accumulate, so every 64 of depth are added to
//                 float32 sums anyway, and the addition undoes the scale: a row needs no scale of
//                 its own, and `right` is read once. While a step is multiplied the next is split,
//                 and the warpgroups take turns, so that one multiplies while the other one adds.
//
// Blocks work in pairs and share what they have in common through the copy engine: two tiles of
// `right` have the same rows of `left`, and for more than 128 rows two tiles of `left` have the
// same rows of `right`. Where there are fewer tiles than multiprocessors the depth is parted; a
// second kernel adds up the parts in a fixed order, computes again what the split leaves in doubt,
// as gemm_sm90.cuh does, and adds the bias.
#pragma once

#include "gemm_sm90.cuh"
#include "hopper.cuh"
#include "split.cuh"

namespace kw {

struct ThinOperands {
  const float* left;
  const float* right;
  const float* bias;  // or null
  float* out;
  uint16_t* left_halves;
  RowScale* left_scales;
  float* sums;             // [parts, rows, columns]
  RowScale* right_scales;  // [parts, columns]
  int rows;
  int columns;
  int depth;
  int parts;  // of the depth
};

namespace thin {

inline constexpr int kTile = 128;  // rows of `right` to a block
inline constexpr int kStep = 64;   // of depth to a stage
inline constexpr int kMostRows = 256;
inline constexpr int kPair = 2;
inline constexpr int kThreads = 384;
inline constexpr int kFeederRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

template <int kPlanes, int kRows>
struct Shape {
  static constexpr int kRowBytes = 128;                 // of a swizzled row
  static constexpr int kHalfBytes = kTile * kRowBytes;  // 32 of depth of `right`
  static constexpr int kRightBytes = 2 * kHalfBytes;
  static constexpr int kLeftPlane = kRows * kRowBytes;
  static constexpr int kLeftBytes = kPlanes * kLeftPlane;
  static constexpr int kRoom = 224 * 1024;
  static constexpr int kLeftStages = kLeftBytes > 16 * 1024 ? 3 : 4;
  static constexpr int kRightStages = (kRoom - kLeftStages * kLeftBytes) / kRightBytes;
  static constexpr int kShared = kRoom + 1024;  // the swizzle wants multiples of 1024
};

template <class S>
struct Barriers {
  hopper::Barrier right_full[S::kRightStages];
  hopper::Barrier right_empty[S::kRightStages];
  hopper::Barrier left_full[S::kLeftStages];
  hopper::Barrier left_empty[S::kLeftStages];
};

// What a block multiplies: 128 rows of `right` and up to kRows of `left`, over a part of the depth.
template <int kRows>
struct Work {
  bool two_lefts;   // the pair shares `right`; else it shares `left`
  bool two_halves;  // of `left`; else the second one holds nothing, and is not fetched
  int rank;
  int part;
  int first_column;
  int first_row;
  int first_step;
  int steps;

  __device__ __forceinline__ explicit Work(const ThinOperands& g) {
    const int pair = hopper::block_index() / kPair;
    two_lefts = g.rows > kRows;
    rank = hopper::cluster_rank();
    part = pair % g.parts;
    first_column = (pair / g.parts * (two_lefts ? 1 : kPair) + (two_lefts ? 0 : rank)) * kTile;
    first_row = two_lefts ? rank * kRows : 0;
    two_halves = g.rows - first_row > kRows / 2;
    const int all = (g.depth + kStep - 1) / kStep;
    first_step = static_cast<int>(int64_t{all} * part / g.parts);
    steps = static_cast<int>(int64_t{all} * (part + 1) / g.parts) - first_step;
  }
};

// Half a stage, `half` 0 or 1, for this block alone, or for both if they share it: then each block
// fetches one of the halves.
__device__ __forceinline__ void fetch(void* to, const CUtensorMap* map, hopper::Barrier& full,
                                      const hopper::Box& box, uint64_t policy, bool shared,
                                      bool mine) {
  if (!shared) {
    hopper::copy_box<1>(to, map, full, box, policy);
  } else if (mine) {
    hopper::copy_box<kPair>(to, map, full, box, policy);
  }
}

template <class S, int kRows>
__device__ __forceinline__ void feed_right(const CUtensorMap& map, const Work<kRows>& work,
                                           uint8_t* stages, Barriers<S>& barriers) {
  detail::Ring<S::kRightStages> ring;
  const uint64_t policy = hopper::cache_policy(true);
#pragma unroll 1
  for (int at = 0; at < work.steps; ++at, ring.next()) {
    hopper::Barrier& full = barriers.right_full[ring.stage];
    hopper::wait(barriers.right_empty[ring.stage], ring.phase ^ 1);
    hopper::arrive_expecting(full, S::kRightBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int depth = (work.first_step + at) * kStep + half * (kStep / 2);
      fetch(stages + ring.stage * S::kRightBytes + half * S::kHalfBytes, &map, full,
            {depth, work.first_column, 0, 0}, policy, work.two_lefts, half == work.rank);
    }
  }
}

template <class S, int kPlanes, int kRows>
__device__ __forceinline__ void feed_left(const CUtensorMap& map, const Work<kRows>& work,
                                          uint8_t* stages, Barriers<S>& barriers) {
  detail::Ring<S::kLeftStages> ring;
  const uint64_t policy = hopper::cache_policy(false);
#pragma unroll 1
  for (int at = 0; at < work.steps; ++at, ring.next()) {
    hopper::Barrier& full = barriers.left_full[ring.stage];
    hopper::wait(barriers.left_empty[ring.stage], ring.phase ^ 1);
    hopper::arrive_expecting(full, work.two_halves ? S::kLeftBytes : S::kLeftBytes / 2);
#pragma unroll
    for (int box = 0; box < kPlanes * 2; ++box) {
      const int plane = box / 2;
      const int half = box % 2;
      const int row = work.first_row + half * (kRows / 2);
      if (half != 0 && !work.two_halves) continue;
      fetch(stages + ring.stage * S::kLeftBytes + box * (S::kLeftPlane / 2), &map, full,
            {0, row % split::kPanel, (work.first_step + at) * kPlanes + plane, row / split::kPanel},
            policy, !work.two_lefts, half == work.rank);
    }
  }
}

// A warpgroup's 64 rows of `right` for one step, as the left operand of its products. In the
// instruction's layout a thread has two of the rows, i, and of every 16 of depth, s, two neighbours
// in each half, h.
template <int kPlanes>
struct Fragment {
  uint32_t planes[kPlanes][4][4];  // [plane][s][2 * h + i]
  float down[2];                   // undoes the scale of row i

  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int n = 0; n < kPlanes * 16; ++n) {
      asm volatile("" : "+r"(planes[n / 16][n / 4 % 4][n % 4])::"memory");
    }
  }
};

// Where a thread finds its numbers in a stage of `right`, whose rows of 128 bytes are swizzled: 16
// bytes c of row r lie at c ^ r % 8. So that a half warp meets all banks, its rows are even ones,
// and those of the other half are odd.
struct Place {
  int row;     // in the tile; the second row is eight further on
  int offset;  // in bytes, of s = h = i = 0

  __device__ __forceinline__ Place() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int group = lane / 4;
    const int quad = lane % 4;
    const int within = group % 4 * 2 + group / 4;
    row = static_cast<int>(threadIdx.x / 32 - 4) * 16 + within;
    offset = row * 128 + ((quad / 2 ^ within) * 16 | quad % 2 * 8);
  }

  template <class S>
  __device__ __forceinline__ float2 load(const uint8_t* stage, int s, int h, int i) const {
    const int at = (offset ^ (s % 2 * 64 | h * 32)) + s / 2 * S::kHalfBytes + i * 1024;
    return *reinterpret_cast<const float2*>(stage + at);
  }
};

// What a thread remembers of its two rows.
struct Rows {
  float most[2] = {};     // the largest magnitude so far
  float residue[2] = {};  // what was lost of the thread's own numbers
};

__device__ __forceinline__ uint32_t smaller_magnitudes(uint32_t least, uint32_t pair) {
  asm("{\n.reg .b32 x;\nabs.f16x2 x, %1;\nmin.f16x2 %0, %0, x;\n}" : "+r"(least) : "r"(pair));
  return least;
}

// Whether one of two float16 magnitudes is below the smallest that loses nothing that counts.
template <int kPlanes>
__device__ __forceinline__ bool loses(uint32_t least) {
  constexpr uint32_t kBits = kPlanes == 2 ? 0x3000 : 0x0400;  // kSmallest as float16
  return (least & 0xffff) < kBits || least >> 16 < kBits;
}

template <class S, int kPlanes>
__device__ __forceinline__ void convert(Fragment<kPlanes>& to, Rows& rows, const uint8_t* stage,
                                        const Place& place) {
  float2 x[4][4];
  float most[2] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[s][n] = place.load<S>(stage, s, n / 2, n % 2);
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      most[n % 2] = maximum(most[n % 2], fabsf(x[s][n].x));
      most[n % 2] = maximum(most[n % 2], fabsf(x[s][n].y));
    }
  }
  float up[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = maximum(most[i], __shfl_xor_sync(0xffffffff, most[i], 1));
    most[i] = maximum(most[i], __shfl_xor_sync(0xffffffff, most[i], 2));
    rows.most[i] = maximum(rows.most[i], most[i]);
    // The largest comes to [2^14, 2^15); what is smaller than 2^-100 stays below.
    const uint32_t exponent = max(__float_as_uint(most[i]) >> 23, 27u);
    up[i] = __uint_as_float((268u - exponent) << 23);
    to.down[i] = __uint_as_float((exponent - 14u) << 23);
  }
  uint32_t least = 0x7c007c00;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t planes[kPlanes];
      split::split_pair<kPlanes>(float2{x[s][n].x * up[n % 2], x[s][n].y * up[n % 2]}, planes);
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) to.planes[p][s][n] = planes[p];
      least = smaller_magnitudes(least, planes[0]);
    }
  }
  // Rows behind the end, and others of zeros, lose nothing.
  if (loses<kPlanes>(least) && (most[0] != 0.0f || most[1] != 0.0f)) {
#pragma unroll 1
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 y = place.load<S>(stage, s, n / 2, n % 2);
        const float gone = split::lost<kPlanes>(float2{y.x * up[n % 2], y.y * up[n % 2]});
        rows.residue[n % 2] += gone * to.down[n % 2];
      }
    }
  }
}

// What the second kernel must know of a row: its scale, if all of it had the one of its largest
// number, and its doubt. A NaN, an infinity and what might overflow make the scale NaN.
template <int kPlanes>
__device__ __forceinline__ RowScale bound(float most, float residue) {
  const uint32_t exponent = __float_as_uint(most) >> 23;
  float scale = __uint_as_float((max(exponent, 27u) - 14u) << 23);
  if (most == 0.0f) scale = 0.0f;
  if (exponent > 127 + 60) scale = __builtin_nanf("");
  return {scale, residue * split::kDoubtPerResidue<kPlanes>};
}

template <class S, int kPlanes, int kRows>
__device__ __forceinline__ void consume(const ThinOperands& g, const Work<kRows>& work,
                                        const uint8_t* rights, const uint8_t* lefts,
                                        Barriers<S>& barriers) {
  using Product = hopper::RegisterProduct<kRows>;
  constexpr int kCount = kRows / 2;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const Place place;
  Rows rows;
  detail::Ring<S::kRightStages> right;
  detail::Ring<S::kLeftStages> left;
  // A stage is free when the warps of all blocks that have it are done with it.
  const auto release = [&](hopper::Barrier& empty, bool shared) {
    __syncwarp();
    if (lane < (shared ? kPair : 1)) hopper::arrive_at(empty, shared ? lane : work.rank);
  };
  const auto prepare = [&](Fragment<kPlanes>& to) {
    hopper::wait(barriers.right_full[right.stage], right.phase);
    convert<S>(to, rows, rights + right.stage * S::kRightBytes, place);
    release(barriers.right_empty[right.stage], work.two_lefts);
    right.next();
  };
  float sum[kCount];
  float d[kCount];
#pragma unroll
  for (int n = 0; n < kCount; ++n) sum[n] = 0.0f;
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  const auto multiply = [&](const Fragment<kPlanes>& a) {
    const uint64_t b =
        hopper::tile_descriptor<hopper::Major::kDepth>(lefts + left.stage * S::kLeftBytes);
    constexpr uint64_t kPlane = S::kLeftPlane / 16;
    hopper::wait(barriers.left_full[left.stage], left.phase);
    hopper::sync_threads<256>(warpgroup);
    hopper::pin(d);
    hopper::begin_products();
    if constexpr (kPlanes == 2) {  // small terms first
#pragma unroll
      for (int s = 0; s < 4; ++s) Product::run(d, a.planes[1][s], b + 2 * s, s);
#pragma unroll
      for (int s = 0; s < 4; ++s) Product::run(d, a.planes[0][s], b + kPlane + 2 * s, 1);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) Product::run(d, a.planes[0][s], b + 2 * s, (kPlanes - 1) | s);
    hopper::commit_products();
    hopper::arrive_threads<256>(3 - warpgroup);
  };
  const auto add = [&](Fragment<kPlanes>& a) {
    hopper::wait_products<0>();
    hopper::pin(d);
    a.pin();
    release(barriers.left_empty[left.stage], !work.two_lefts);
    left.next();
#pragma unroll
    for (int n = 0; n < kCount; ++n) sum[n] = fmaf(d[n], a.down[n / 2 % 2], sum[n]);
  };

  if (warpgroup == 2) hopper::arrive_threads<256>(1);
  Fragment<kPlanes> even;
  Fragment<kPlanes> odd;
  prepare(even);
  int at = 0;
#pragma unroll 1
  for (; at + 2 < work.steps; at += 2) {
    multiply(even);
    prepare(odd);
    add(even);
    multiply(odd);
    prepare(even);
    add(odd);
  }
  multiply(even);
  if (at + 1 < work.steps) {
    prepare(odd);
    add(even);
    multiply(odd);
    add(odd);
  } else {
    add(even);
  }

  const int quad = lane % 4;
  const int64_t plane = int64_t{g.rows} * g.columns;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = work.first_column + place.row + 8 * i;
    float residue = rows.residue[i];
    residue += __shfl_xor_sync(0xffffffff, residue, 1);
    residue += __shfl_xor_sync(0xffffffff, residue, 2);
    if (column >= g.columns) continue;
    if (quad == 0 && work.first_row == 0) {
      g.right_scales[int64_t{work.part} * g.columns + column] =
          bound<kPlanes>(rows.most[i], residue);
    }
    float* const to = g.sums + work.part * plane + column;
#pragma unroll
    for (int n = 0; n < kCount / 2; ++n) {
      const int row = work.first_row + n / 2 * 8 + quad * 2 + n % 2;
      if (row < g.rows) to[int64_t{row} * g.columns] = sum[n / 2 * 4 + i * 2 + n % 2];
    }
  }
}

template <int kPlanes, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right,
           const ThinOperands g) {
#ifdef KW_HOPPER
  using S = Shape<kPlanes, kRows>;
  extern __shared__ uint8_t raw[];
  __shared__ Barriers<S> barriers;
  uint8_t* const rights = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
  uint8_t* const lefts = rights + S::kRightStages * S::kRightBytes;
  const Work<kRows> work(g);
  if (threadIdx.x == 0) {
    hopper::prefetch(&left);
    hopper::prefetch(&right);
    for (int s = 0; s < S::kRightStages; ++s) {
      hopper::init(barriers.right_full[s], 1);
      hopper::init(barriers.right_empty[s], work.two_lefts ? 8 * kPair : 8);  // consuming warps
    }
    for (int s = 0; s < S::kLeftStages; ++s) {
      hopper::init(barriers.left_full[s], 1);
      hopper::init(barriers.left_empty[s], work.two_lefts ? 8 : 8 * kPair);
    }
    hopper::publish_barriers();
  }
  hopper::sync_cluster();
  await_turn();
  if (threadIdx.x < 128) {
    hopper::give_registers<kFeederRegisters>();
    if (threadIdx.x == 0) {
      feed_right<S>(right, work, rights, barriers);
    } else if (threadIdx.x == 32) {
      feed_left<S, kPlanes>(left, work, lefts, barriers);
    }
  } else {
    hopper::take_registers<kConsumerRegisters>();
    consume<S, kPlanes>(g, work, rights, lefts, barriers);
  }
  // No block may leave while the other one still signals its barriers or delivers to it.
  hopper::sync_cluster();
#endif
}

// Adds up the parts of the depth, undoes the scales of `left`, computes again what is in doubt and
// adds the bias. A thread has kEach rows of a column, and loads kAtOnce parts before it adds them.
inline constexpr int kFinishing = 256;
inline constexpr int kEach = 2;
inline constexpr int kAtOnce = 4;

template <int kEach>
__global__ void __launch_bounds__(kFinishing) finish(const ThinOperands g) {
  const int bands = (g.rows + kEach - 1) / kEach;
  const int block = static_cast<int>(blockIdx.x);
  const int warp_column = block / bands * kFinishing + static_cast<int>(threadIdx.x / 32 * 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column = warp_column + lane;
  const bool inside = column < g.columns;
  const int first = block % bands * kEach;
  const int64_t plane = int64_t{g.rows} * g.columns;
  await_turn();
  RowScale right{};
  float sum[kEach] = {};
#pragma unroll 1
  for (int part = 0; part < (inside ? g.parts : 0); part += kAtOnce) {
    RowScale scales[kAtOnce] = {};
    float some[kAtOnce][kEach] = {};
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      if (part + p >= g.parts) break;
      scales[p] = g.right_scales[int64_t{part + p} * g.columns + column];
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
        const int64_t at = (part + p) * plane + int64_t{first + n} * g.columns + column;
        if (first + n < g.rows) some[p][n] = g.sums[at];
      }
    }
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      right.scale = maximum(right.scale, scales[p].scale);
      right.doubt += scales[p].doubt;
#pragma unroll
      for (int n = 0; n < kEach; ++n) sum[n] += some[p][n];
    }
  }
  const float bias = inside && g.bias != nullptr ? g.bias[column] : 0.0f;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int row = first + n;
    if (row >= g.rows) break;
    const RowScale left = g.left_scales[row];
    float least = right.doubt * left.scale + right.scale * left.doubt;
    if (least == 0.0f || left.scale == 0.0f) least = -1.0f;  // zeros are zero without any doubt
    float value = sum[n] * left.scale;
    unsigned again = __ballot_sync(0xffffffff, inside && !(fabsf(value) > least));
#pragma unroll 1
    while (again != 0) {
      const int owner = __ffs(static_cast<int>(again)) - 1;
      again &= again - 1;
      const float* const lefts[] = {g.left + int64_t{row} * g.depth};
      const float* const rights[] = {g.right + int64_t{warp_column + owner} * g.depth};
      float dot[1] = {};
      detail::dots<true>(dot, lefts, rights, g.depth, 1, 1);
      const float exact = reduce_threads<Combine::kSum, 32>(dot[0]);
      if (lane == owner) value = exact;
    }
    if (inside) {
      g.out[int64_t{row} * g.columns + column] = g.bias != nullptr ? value + bias : value;
    }
  }
}

inline bool describe(CUtensorMap& map, CUtensorMapDataType type, cuuint64_t bytes, const void* at,
                     const cuuint64_t (&sizes)[4], const cuuint32_t (&box)[4]) {
  cuuint64_t strides[3];
  for (int i = 0; i < 3; ++i) strides[i] = (i == 0 ? bytes : strides[i - 1]) * sizes[i];
  const cuuint32_t each[] = {1, 1, 1, 1};
  const hopper::EncodeMap encode = hopper::encode_map();
  return encode != nullptr && encode(&map, type, 4, const_cast<void*>(at), sizes, strides, box,
                                     each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int kPlanes, int kRows>
cudaError_t multiply(const ThinOperands& g, cudaStream_t stream) {
  using S = Shape<kPlanes, kRows>;
  static_assert(S::kRightStages >= 3, "the copy engine must run ahead");
  constexpr cuuint64_t kPanel = split::kPanel;
  const auto panels = static_cast<cuuint64_t>(split::whole_panels(g.rows)) / kPanel;
  const auto steps = static_cast<cuuint64_t>(split::whole_panels(g.depth)) / kPanel;
  CUtensorMap left;
  CUtensorMap right;
  if (!describe(left, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, g.left_halves,
                {kPanel, kPanel, steps * kPlanes, panels}, {kStep, kRows / 2, 1, 1}) ||
      !describe(right, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, g.right,
                {static_cast<cuuint64_t>(g.depth), static_cast<cuuint64_t>(g.columns), 1, 1},
                {kStep / 2, kTile, 1, 1})) {
    return cudaErrorInvalidValue;
  }
  const auto run = kernel<kPlanes, kRows>;
  const cudaError_t error = allow_shared(reinterpret_cast<const void*>(run), S::kShared);
  if (error != cudaSuccess) return error;
  const int tall = g.rows > kRows ? kTile : kPair * kTile;  // of `right` to a pair
  const int pairs = (g.columns + tall - 1) / tall * g.parts;
  return launch(run,
                Grid{static_cast<unsigned>(pairs * kPair), kThreads, stream, S::kShared, kPair},
                left, right, g);
}

}  // namespace thin

// For a depth that is a multiple of four, which the copy engine needs. kPlanes and kDepth as in
// split.cuh.
template <int kPlanes, int kDepth>
cudaError_t thin_product(const ThinOperands& g, cudaStream_t stream) {
  if (g.rows == 0) return cudaSuccess;
  const Operand left{g.left, 0, 0, g.depth, 1};
  cudaError_t error = split_all<kPlanes, hopper::Major::kDepth, false, kDepth>(
      left, Batch{}, g.left_halves, g.left_scales, g.rows, g.depth, stream);
  if (error != cudaSuccess) return error;
  error = g.rows <= 64 ? thin::multiply<kPlanes, 64>(g, stream)
                       : thin::multiply<kPlanes, 128>(g, stream);
  if (error != cudaSuccess) return error;
  const int bands = (g.rows + thin::kEach - 1) / thin::kEach;
  const int across = (g.columns + thin::kFinishing - 1) / thin::kFinishing;
  return launch(thin::finish<thin::kEach>,
                Grid{static_cast<unsigned>(bands * across), thin::kFinishing, stream}, g);
}

}  // namespace kw
