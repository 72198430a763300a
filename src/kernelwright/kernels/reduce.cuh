// Reductions across threads. The order is fixed, so results repeat bit for bit.
#pragma once

#include <cuda_runtime.h>

#include "program.cuh"

namespace kw {

// Combine over Width threads: neighbours in a warp, or the whole block. Everyone gets the result.
template <Combine C, int Width>
__device__ __forceinline__ float reduce_threads(float x) {
  constexpr int kInWarp = Width < 32 ? Width : 32;
  KW_LANES
  for (int offset = kInWarp / 2; offset > 0; offset /= 2) {
    x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
  }
  if constexpr (Width > 32) {
    __shared__ float partial[32];
    const int warp = threadIdx.x / 32;
    __syncthreads();  // the previous reduction may still be read
    if (threadIdx.x % 32 == 0) partial[warp] = x;
    __syncthreads();
    x = partial[0];
    for (int w = 1; w < Width / 32; ++w) x = combine<C>(x, partial[w]);
  }
  return x;
}

}  // namespace kw
