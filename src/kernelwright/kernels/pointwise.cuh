// Row programs without a reduction, on the GPU: a flat grid over chunks of kVec neighbouring
// elements, kChunks of them to a thread.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) pointwise_kernel(const typename P::Args a) {
  await_turn();
  constexpr int V = C::kVec;
  const int64_t per_row = P::elements(a) / V;
  const int64_t chunks = P::rows(a) * per_row;
  const bool small = chunks < 0x7fffffff;  // a 64-bit division costs more than the work itself
  const int64_t step = int64_t{gridDim.x} * C::kThreads;
  for (int64_t i = int64_t{blockIdx.x} * C::kThreads + threadIdx.x; i < chunks; i += step) {
    typename P::template Fields<V> f;
    const typename P::template Scalars<1> s{};
    const int64_t row =
        small ? static_cast<unsigned>(i) / static_cast<unsigned>(per_row) : i / per_row;
    P::store_elements(f, s, a, Cursor{row, (i - row * per_row) * V});
  }
}

template <class P, class C>
cudaError_t pointwise(const typename P::Args& a, cudaStream_t stream) {
  const int64_t chunks = P::rows(a) * (P::elements(a) / C::kVec);
  if (chunks == 0) return cudaSuccess;
  const int64_t blocks = (chunks + C::kThreads * C::kChunks - 1) / (C::kThreads * C::kChunks);
  const auto grid = static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff);
  return launch(pointwise_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
