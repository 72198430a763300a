// Row programs on the GPU whose rows are windows that begin within one another: pools, depthwise
// convolutions. A thread takes a box of windows (boxes.cuh); threads that are neighbours take boxes
// beside each other, so that what two of them see comes out of the nearest cache.
#pragma once

#include <cuda_runtime.h>

#include "boxes.cuh"
#include "launch.cuh"

namespace kw {

// The number of a thread, known no sooner than its turn has come: what depends on it stays behind.
__device__ __forceinline__ unsigned own_number() {
  unsigned number = threadIdx.x;
  asm volatile("" : "+r"(number));
  return number;
}

// With 32 bits the divisions by which a program finds its places take a fraction of the time.
template <class P, class C>
__global__ void __launch_bounds__(C::kThreads)
    windows_kernel(const typename P::Args a, const int64_t threads) {
  await_turn();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * C::kThreads + own_number();
  if (thread >= threads) return;
  if (P::rows(a) < int64_t{1} << 31) {
    Windows<uint32_t, P, C>(a, static_cast<uint32_t>(thread)).run();
  } else {
    Windows<uint64_t, P, C>(a, static_cast<uint64_t>(thread)).run();
  }
}

template <class P, class C>
cudaError_t windows(const typename P::Args& a, cudaStream_t stream) {
  const int64_t threads = P::rows(a) / Box<P>::kRows * Box<P>::kTiles;
  if (threads == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((threads + C::kThreads - 1) / C::kThreads);
  return launch(windows_kernel<P, C>, Grid{grid, C::kThreads, stream}, a, threads);
}

}  // namespace kw
