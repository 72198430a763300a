// Row programs without a reduction, on the GPU: a block takes kThreads x kChunks neighbouring
// chunks of kVec elements, and a thread loads its kChunks of them before it stores any.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

template <class P, class C>
__device__ __forceinline__ void store_chunk(const typename P::Args& a, int64_t i, int64_t per_row,
                                            bool small) {
  typename P::template Fields<C::kVec> f;
  const typename P::template Scalars<1> s{};
  int64_t row = 0;
  if constexpr (!C::kFlat) {
    row = small ? static_cast<unsigned>(i) / static_cast<unsigned>(per_row) : i / per_row;
  }
  P::store_elements(f, s, a, Cursor{row, (i - row * per_row) * C::kVec});
}

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) pointwise_kernel(const typename P::Args a) {
  await_turn();
  constexpr int kSpan = C::kThreads * C::kChunks;
  const int64_t per_row = P::elements(a) / C::kVec;
  const int64_t chunks = P::rows(a) * per_row;
  const bool small = chunks < 0x7fffffff;  // a 64-bit division costs more than the work itself
  const int64_t start = int64_t{blockIdx.x} * kSpan;
  const int64_t first = start + threadIdx.x;
  if (start + kSpan <= chunks) {
    KW_LANES
    for (int c = 0; c < C::kChunks; ++c) {
      store_chunk<P, C>(a, first + c * C::kThreads, per_row, small);
    }
  } else {
#pragma unroll 1
    for (int64_t i = first; i < chunks; i += C::kThreads) store_chunk<P, C>(a, i, per_row, small);
  }
}

template <class P, class C>
cudaError_t pointwise(const typename P::Args& a, cudaStream_t stream) {
  const int64_t chunks = P::rows(a) * (P::elements(a) / C::kVec);
  if (chunks == 0) return cudaSuccess;
  constexpr int64_t kSpan = C::kThreads * C::kChunks;
  const auto grid = static_cast<unsigned>((chunks + kSpan - 1) / kSpan);
  return launch(pointwise_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
