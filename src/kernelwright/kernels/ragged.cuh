// Row programs without a reduction, on the GPU, whose rows are long and no multiple of a vector:
// planes of 31 x 63 x 63 places, say. A thread takes kVec elements that begin at a multiple of it
// in memory, wherever that is in the row; the first and the last of a row may have to be taken one
// by one. What a program reads and writes element by element must lie alike: row after row.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

template <int V, class P>
__device__ __forceinline__ void store_vector(const typename P::Args& a, int64_t row,
                                             int64_t element) {
  typename P::template Fields<V> f;
  const typename P::template Scalars<1> s{};
  P::store_elements(f, s, a, Cursor{row, element});
}

// So many vectors that they cover a row wherever it begins.
template <class P, class C>
KW_FN int64_t vectors_of_row(const typename P::Args& a) {
  return (P::elements(a) + 2 * (C::kVec - 1)) / C::kVec;
}

template <class P, class C, class Number>
__device__ __forceinline__ void store_part(const typename P::Args& a) {
  const auto per_row = static_cast<Number>(vectors_of_row<P, C>(a));
  const auto i = static_cast<Number>(blockIdx.x) * C::kThreads + static_cast<Number>(threadIdx.x);
  const Number row = i / per_row;
  if (static_cast<int64_t>(row) >= P::rows(a)) return;
  const int64_t elements = P::elements(a);
  const auto lead = static_cast<int>(static_cast<unsigned>(row) * static_cast<unsigned>(elements) %
                                     unsigned{C::kVec});
  const int64_t first = static_cast<int64_t>(i - row * per_row) * C::kVec - lead;
  if (first >= 0 && first + C::kVec <= elements) {
    store_vector<C::kVec, P>(a, row, first);
  } else {
#pragma unroll 1
    for (int64_t e = first; e < first + C::kVec; ++e) {
      if (e >= 0 && e < elements) store_vector<1, P>(a, row, e);
    }
  }
}

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) ragged_kernel(const typename P::Args a) {
  static_assert((C::kVec & (C::kVec - 1)) == 0, "what 32 bits leave out is a multiple of it");
  await_turn();
  if (P::rows(a) * vectors_of_row<P, C>(a) < 0x7fffffff) {
    store_part<P, C, unsigned>(a);
  } else {
    store_part<P, C, int64_t>(a);
  }
}

template <class P, class C>
cudaError_t ragged(const typename P::Args& a, cudaStream_t stream) {
  const int64_t vectors = P::rows(a) * vectors_of_row<P, C>(a);
  if (vectors == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((vectors + C::kThreads - 1) / C::kThreads);
  return launch(ragged_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
