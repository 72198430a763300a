// Reductions across the threads of a warp, of a block, and of the blocks that share a row. The
// order is fixed, so results repeat bit for bit.
#pragma once

#include <cuda_runtime.h>

#include "program.cuh"

namespace kw {

// Combine over Width threads: neighbours in a warp, or the whole block. Everyone gets the result.
template <Combine C, int Width, class T>
__device__ __forceinline__ T reduce_threads(T x) {
  constexpr int kInWarp = Width < 32 ? Width : 32;
  KW_LANES
  for (int offset = kInWarp / 2; offset > 0; offset /= 2) {
    x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
  }
  if constexpr (Width > 32) {
    __shared__ T partial[32];
    const int warp = threadIdx.x / 32;
    __syncthreads();  // the previous reduction may still be read
    if (threadIdx.x % 32 == 0) partial[warp] = x;
    __syncthreads();
    if constexpr (sizeof(T) > sizeof(float)) {
      x = partial[threadIdx.x % (Width / 32)];  // one by one, doubles take too long
      KW_LANES
      for (int offset = Width / 64; offset > 0; offset /= 2) {
        x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
      }
    } else {
      x = partial[0];
      for (int w = 1; w < Width / 32; ++w) x = combine<C>(x, partial[w]);
    }
  }
  return x;
}

// Which row a block works on, and as which of the blocks that share it. On Hopper these are a
// cluster, and their results meet in each other's shared memory. Before it there are none: the
// first blocks take the rows, and the others leave.
struct Share {
  int64_t row;
  int rank;
  int blocks;
};

__device__ __forceinline__ Share share_of_row() {
#if __CUDA_ARCH__ >= 900
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return {blockIdx.x / blocks, static_cast<int>(blockIdx.x % blocks), static_cast<int>(blocks)};
#else
  return {blockIdx.x, 0, 1};
#endif
}

// A block may write to another one only after that has come to life: every block arrives once
// before the first reduction.
__device__ __forceinline__ void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Combine what every thread of a block knows over the blocks that share a row, at most Most. Stages
// take turns with two places, so that one barrier each is enough; I counts them from 0.
template <Combine C, int Most, int I, class T>
__device__ __forceinline__ T reduce_blocks(T x, const Share& share) {
#if __CUDA_ARCH__ >= 900
  if (share.blocks > 1) {
    __shared__ T places[2][Most];
    if constexpr (I == 0) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x < share.blocks) {
      const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(&places[I % 2][share.rank]));
      uint32_t there;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(threadIdx.x));
      if constexpr (sizeof(T) == 8) {
        asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(there), "d"(x) : "memory");
      } else {
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
      }
    }
    __syncwarp();
    arrive_in_cluster();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    x = places[I % 2][0];
    for (int b = 1; b < share.blocks; ++b) x = combine<C>(x, places[I % 2][b]);
  }
#endif
  return x;
}

}  // namespace kw
