// stand-in
#pragma once

#include <cuda_runtime.h>

#include "conv_tile.cuh"

namespace kw {

struct ConvOperands {
  const void* input;
  const void* weight;
  void* packed;
  void* scales;
  int64_t batch;
};
struct ConvSplitFloat {};
struct ConvRoundedFloat {};

template <class P, class C>
__global__ void conv_kernel(ConvOperands, const typename P::Args a) {
  __shared__ float room[C::kTileChannels * C::kTilePitch];
  __shared__ float scratch[128];
  const ConvTile<C> tile{room, blockIdx.x, 0, 0, 0, static_cast<int>(blockIdx.y) * C::kTileW, 1, scratch};
  ConvEpilogue<P, C>{a}.run(tile, static_cast<int>(threadIdx.x));
}

template <class Loop, class P, class C>
cudaError_t conv(const ConvOperands& g, const typename P::Args& a, cudaStream_t on) {
  conv_kernel<P, C><<<1, C::kEpilogueThreads, 0, on>>>(g, a);
  return cudaSuccess;
}

}  // namespace kw
