// Row programs without a reduction, on the GPU, between tensors whose neighbours lie along
// different axes: channels last on one side, channels first on the other.
//
// An element of the program is a place down (its outer axis) and one across (its segment). A thread
// takes a block of kDown x kAcross of them: what lies across in memory is loaded across and what
// lies down is stored down, each as vectors, and the turning happens in its registers. A warp has
// kWarpAcross blocks across and the others down, so that all it touches are whole sectors both
// ways; there is no shared memory. The tiles of neighbouring thread blocks are neighbours across.
#pragma once

#include <cuda_runtime.h>

#include "block.cuh"
#include "launch.cuh"
#include "program.cuh"

namespace kw {

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) turned_kernel(const typename P::Args a) {
  await_turn();
  constexpr int kBlocksAcross = P::kSegment / C::kAcross;
  constexpr int kTilesAcross = (kBlocksAcross + C::kWarpAcross - 1) / C::kWarpAcross;
  constexpr int kTileDown = C::kThreads / C::kWarpAcross;
  const auto blocks_down = static_cast<unsigned>(P::elements(a) / (P::kSegment * C::kDown));
  const unsigned tiles_down = (blocks_down + kTileDown - 1) / kTileDown;
  const unsigned tile = blockIdx.x / kTilesAcross;
  const unsigned across = blockIdx.x % kTilesAcross * C::kWarpAcross + threadIdx.x % C::kWarpAcross;
  const unsigned down = tile % tiles_down * kTileDown + threadIdx.x / C::kWarpAcross;
  if (across >= kBlocksAcross || down >= blocks_down) return;
  typename P::template Fields<C::kDown * C::kAcross> f;
  const typename P::template Scalars<1> s{};
  const int64_t element = int64_t{down} * (C::kDown * P::kSegment) + across * C::kAcross;
  P::store_elements(f, s, a, Cursor{tile / tiles_down, element});
}

template <class P, class C>
cudaError_t turned(const typename P::Args& a, cudaStream_t stream) {
  constexpr int64_t kBlocksAcross = P::kSegment / C::kAcross;
  constexpr int64_t kTilesAcross = (kBlocksAcross + C::kWarpAcross - 1) / C::kWarpAcross;
  constexpr int64_t kTileDown = C::kThreads / C::kWarpAcross;
  const int64_t blocks_down = P::elements(a) / (P::kSegment * C::kDown);
  const int64_t tiles = P::rows(a) * ((blocks_down + kTileDown - 1) / kTileDown) * kTilesAcross;
  if (tiles == 0) return cudaSuccess;
  return launch(turned_kernel<P, C>, Grid{static_cast<unsigned>(tiles), C::kThreads, stream}, a);
}

}  // namespace kw
