// Row programs on the GPU whose rows are a few large windows of the same picture. A block takes a
// picture: its threads lie along the columns (large_windows.cuh) and share the lines, and what they
// have of each window comes together in the end.
#pragma once

#include <cuda_runtime.h>

#include "large_windows.cuh"
#include "launch.cuh"

namespace kw {

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocks)
    pictures_kernel(const typename P::Args a) {
  using Taken = LargeWindows<P, C>;
  constexpr int kWarps = C::kThreads / 32;
  constexpr int kBeside = Taken::kColumns < C::kThreads ? Taken::kColumns : C::kThreads;
  constexpr int kDown = C::kThreads / kBeside;
  __shared__ float parts[kWarps][Taken::kWindows];
  await_turn();
  const int thread = static_cast<int>(threadIdx.x);
  Taken taken(a, static_cast<int64_t>(blockIdx.x));
  if (thread < kBeside * kDown) {
#pragma unroll 1
    for (int column = thread % kBeside; column < Taken::kColumns; column += kBeside) {
      taken.take(column, thread / kBeside, Taken::kLines, kDown);
    }
  }
#pragma unroll
  for (int w = 0; w < Taken::kWindows; ++w) {
    float all = taken.total[w];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      all = combine<Taken::kOp>(all, __shfl_xor_sync(0xffffffff, all, apart));
    }
    if (thread % 32 == 0) parts[thread / 32][w] = all;
  }
  __syncthreads();
  for (int w = thread; w < Taken::kWindows; w += C::kThreads) {
    float all = parts[0][w];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) all = combine<Taken::kOp>(all, parts[warp][w]);
    taken.store(w, all);
  }
}

template <class P, class C>
cudaError_t pictures(const typename P::Args& a, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(P::rows(a) / LargeWindows<P, C>::kWindows);
  if (count == 0) return cudaSuccess;
  return launch(pictures_kernel<P, C>, Grid{count, C::kThreads, stream}, a);
}

}  // namespace kw
