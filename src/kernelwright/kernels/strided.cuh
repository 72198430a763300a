// Row programs on the GPU where rows, not elements, are neighbours in memory.
//
// 32 rows across, kDepth threads down the elements: a warp's loads are contiguous. Partial results
// meet in shared memory; each stage reads the elements again.
#pragma once

#include <cuda_runtime.h>

#include "program.cuh"

namespace kw {

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) strided_kernel(const typename P::Args a) {
  __shared__ float partial[C::kDepth][33];
  const int x = threadIdx.x % 32;
  const int y = threadIdx.x / 32;
  const int64_t wanted = int64_t{blockIdx.x} * 32 + x;
  const bool live = wanted < P::rows(a);
  const int64_t row = live ? wanted : P::rows(a) - 1;
  const int64_t elements = P::elements(a);
  typename P::template Scalars<1> s;
  for_each_stage<P>([&](auto stage) {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    Vec<1> total{{identity<kOp>()}};
#pragma unroll 4
    for (int64_t e = y; e < elements; e += C::kDepth) {
      typename P::template Fields<1> f;
      replay<P, I, 1, 1>(f, s, a, Cursor{row, e});
      const Vec<1> value = P::contribution(stage, f, s, a, Cursor{row, e});
      total[0] = combine<kOp>(total[0], value[0]);
    }
    if constexpr (C::kDepth > 1) {
      __syncthreads();  // the previous stage may still read
      partial[y][x] = total[0];
      __syncthreads();
      total[0] = partial[0][x];
      for (int d = 1; d < C::kDepth; ++d) total[0] = combine<kOp>(total[0], partial[d][x]);
    }
    P::finish(stage, s, total, a);
  });
  if (!live) return;
  if constexpr (P::kStoresElements) {
#pragma unroll 4
    for (int64_t e = y; e < elements; e += C::kDepth) {
      typename P::template Fields<1> f;
      replay<P, P::kStages, 1, 1>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    }
  }
  if (y == 0) P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
cudaError_t strided(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  strided_kernel<P, C><<<static_cast<unsigned>((rows + 31) / 32), C::kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace kw
