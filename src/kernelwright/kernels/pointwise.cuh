// Row programs without a reduction, on the GPU: a block takes kThreads x kChunks neighbouring
// chunks of kVec elements, and a thread loads its kChunks of them before it stores any.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

// With unsigned numbers the divisions by which a program finds its places are those of 32 bits.
template <class P, class C, class Number>
__device__ __forceinline__ void store_chunk(const typename P::Args& a, Number i, Number per_row) {
  typename P::template Fields<C::kVec> f;
  const typename P::template Scalars<1> s{};
  const Number row = C::kFlat ? 0 : i / per_row;
  const Number element = i - row * per_row;
  P::store_elements(f, s, a, Cursor{row, int64_t{element} * C::kVec});
}

template <class P, class C, class Number>
__device__ __forceinline__ void store_chunks(const typename P::Args& a, int64_t chunks) {
  constexpr int kSpan = C::kThreads * C::kChunks;
  const auto per_row = static_cast<Number>(P::elements(a) / C::kVec);
  const int64_t start = int64_t{blockIdx.x} * kSpan;
  const int64_t first = start + threadIdx.x;
  if (start + kSpan <= chunks) {
    KW_LANES
    for (int c = 0; c < C::kChunks; ++c) {
      store_chunk<P, C, Number>(a, static_cast<Number>(first + c * C::kThreads), per_row);
    }
  } else {
#pragma unroll 1
    for (int64_t i = first; i < chunks; i += C::kThreads) {
      store_chunk<P, C, Number>(a, static_cast<Number>(i), per_row);
    }
  }
}

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) pointwise_kernel(const typename P::Args a) {
  await_turn();
  const int64_t chunks = P::rows(a) * (P::elements(a) / C::kVec);
  if (chunks < 0x7fffffff) {  // a 64-bit division costs more than the work itself
    store_chunks<P, C, unsigned>(a, chunks);
  } else {
    store_chunks<P, C, int64_t>(a, chunks);
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
