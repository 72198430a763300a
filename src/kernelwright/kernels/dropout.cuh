// Which elements a dropout keeps: the numbers of ATen's own dropout kernel, bit for bit, as one
// truth value for each element.
//
// ATen has 256 threads in so many `blocks`, and each thread goes through the tensor in steps of the
// whole grid. A step takes kVec neighbours, or, where no vector divides the tensor, four elements a
// grid apart; and of its sequence of random numbers a thread takes the next four for each four
// elements. So which number an element gets follows from the thread and the step alone, and here
// the steps are parallel too: a block does a few steps of a block of ATen's. Nothing is read, each
// truth value is written once.
#pragma once

#include "philox.cuh"

#ifdef __CUDACC__
#include "launch.cuh"
#endif

namespace kw {

struct DropoutMask {
  bool* out;
  RandomKeys keys;
  uint64_t drawn;  // numbers of each thread's sequence that are used up, in fours
  int64_t count;
  unsigned blocks;  // of ATen's grid
  uint32_t kept;    // so many of the 2^32 words that may be drawn keep an element, the first ones
};

namespace dropout {

inline constexpr int kThreads = 256;
inline constexpr int kSteps = 4;  // of a thread, to have several chains of arithmetic at once

template <int kVec>
struct alignas(kVec) Keeps {
  bool lanes[kVec];
};

KW_FN int64_t steps(const DropoutMask& m, int vec) {
  const int64_t once = int64_t{m.blocks} * kThreads * (vec == 1 ? 4 : vec);
  return (m.count + once - 1) / once;
}

// What a thread of ATen's keeps in one of its steps.
template <int kVec>
KW_FN void keep(const DropoutMask& m, uint64_t thread, int64_t step) {
  const int64_t threads = int64_t{m.blocks} * kThreads;
  if constexpr (kVec == 1) {
    const RandomWords drawn = philox(m.keys, m.drawn + static_cast<uint64_t>(step), thread);
    for (int i = 0; i < 4; ++i) {
      const int64_t at = static_cast<int64_t>(thread) + (step * 4 + i) * threads;
      if (at < m.count) m.out[at] = drawn.words[i] < m.kept;
    }
  } else {
    const int64_t at = (step * threads + static_cast<int64_t>(thread)) * kVec;
    if (at >= m.count) return;
    // Of four numbers for two neighbours ATen takes the first two, and draws again.
    constexpr int kDraws = kVec < 4 ? 1 : kVec / 4;
    constexpr int kTaken = kVec < 4 ? kVec : 4;
    Keeps<kVec> kept;
    for (int d = 0; d < kDraws; ++d) {
      const RandomWords drawn =
          philox(m.keys, m.drawn + static_cast<uint64_t>(step * kDraws + d), thread);
      for (int i = 0; i < kTaken; ++i) kept.lanes[d * 4 + i] = drawn.words[i] < m.kept;
    }
    *reinterpret_cast<Keeps<kVec>*>(m.out + at) = kept;
  }
}

#ifdef __CUDACC__

template <int kVec>
__global__ void __launch_bounds__(kThreads) kernel(const DropoutMask m) {
  const uint64_t thread = uint64_t{blockIdx.x % m.blocks} * kThreads + threadIdx.x;
  const int64_t first = int64_t{blockIdx.x / m.blocks} * kSteps;
  await_turn();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) keep<kVec>(m, thread, first + s);
}

template <int kVec>
cudaError_t start(const DropoutMask& m, cudaStream_t stream) {
  const int64_t parts = (steps(m, kVec) + kSteps - 1) / kSteps;
  const Grid grid{static_cast<unsigned>(parts * m.blocks), kThreads, stream};
  return launch(kernel<kVec>, grid, m);
}

#endif

}  // namespace dropout

#ifdef __CUDACC__

// `vec` is how many neighbours ATen's kernel takes: 8, 4, 2, or 1 for those a grid apart.
inline cudaError_t dropout_mask(const DropoutMask& m, int64_t vec, cudaStream_t stream) {
  switch (vec) {
    case 8:
      return dropout::start<8>(m, stream);
    case 4:
      return dropout::start<4>(m, stream);
    case 2:
      return dropout::start<2>(m, stream);
    default:
      return dropout::start<1>(m, stream);
  }
}

#endif

}  // namespace kw
