// Row programs on the GPU where rows are neighbours in memory, few, and long: columns of a matrix
// that is narrow and high. kParts blocks share each kWidth x kVec rows.
//
// As in spread.cuh each reading is a launch, and the next one adds up the parts in one order. Rows
// of up to kShort elements are left to strided.cuh.
//   parts: for each stage and part room for P::rows numbers, of the size of the largest total
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "strided.cuh"

namespace kw {

// A block's rows, and which of the kBlocks it is that share them.
template <class P, class C, int kBlocks>
struct StridedPart {
  static constexpr int V = C::kVec;
  static constexpr int64_t kStep = int64_t{C::kDepth} * kBlocks;
  const typename P::Args& a;
  int part = static_cast<int>(blockIdx.x % kBlocks);
  int y = static_cast<int>(threadIdx.x / C::kWidth);
  int64_t first = int64_t{part} * C::kDepth + y;
  int64_t rows = P::rows(a);
  int64_t wanted = (int64_t{blockIdx.x / kBlocks} * C::kWidth + threadIdx.x % C::kWidth) * V;
  bool live = wanted < rows;
  int64_t row = live ? wanted : rows - V;  // idle threads repeat rows, store nothing

  template <int I>
  __device__ TotalOf<P, I>* results(float* parts, int part) const {
    auto* const all = reinterpret_cast<AnyTotalOf<P>*>(parts) + int64_t{I} * C::kParts * rows;
    return reinterpret_cast<TotalOf<P, I>*>(all) + part * rows + row;
  }

  // What follows from the stages before I.
  template <int I>
  __device__ __forceinline__ void collect(typename P::template Scalars<V>& s, float* parts) const {
    if constexpr (I > 0) {
      collect<I - 1>(s, parts);
      constexpr Combine kOp = P::kCombine[I - 1];
      using T = TotalOf<P, I - 1>;
      auto total = everywhere<V>(identity<kOp, T>());
      for (int i = y; i < C::kParts; i += C::kDepth) {
        const T* from = results<I - 1>(parts, i);
        KW_LANES
        for (int v = 0; v < V; ++v) total[v] = combine<kOp>(total[v], from[v]);
      }
      P::finish(Stage<I - 1>{}, s, reduce_depth<P, C, I - 1>(total), a);
    }
  }
};

template <class P, class C, class Reading>
__global__ void __launch_bounds__(C::kThreads)
    spread_strided_reading(const typename P::Args a, float* parts) {
  await_turn();
  constexpr int V = C::kVec;
  const StridedPart<P, C, C::kParts> own{a};
  typename P::template Scalars<V> s;
  own.template collect<Reading::kFirst>(s, parts);
  const int64_t elements = P::elements(a);
  Totals<P, Reading, V> totals;
  totals.add_all(s, a, Cursor{own.row, own.first}, own.kStep, elements);
  for_each_stage_of(Reading{}, [&](auto stage) {
    const auto total = reduce_depth<P, C, stage.value>(totals[stage]);
    if (own.y == 0 && own.live) {
      auto* const to = own.template results<stage.value>(parts, own.part);
      KW_LANES
      for (int v = 0; v < V; ++v) to[v] = total[v];
    }
  });
}

template <class P, class C>
constexpr int kStridedStoringBlocks = P::kStoresElements ? C::kParts : 1;

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads)
    spread_strided_store(const typename P::Args a, float* parts) {
  await_turn();
  constexpr int V = C::kVec;
  const StridedPart<P, C, kStridedStoringBlocks<P, C>> own{a};
  typename P::template Scalars<V> s;
  own.template collect<P::kStages>(s, parts);
  if (!own.live) return;
  if constexpr (P::kStoresElements) {
    const int64_t elements = P::elements(a);
#pragma unroll 4
    for (int64_t e = own.first; e < elements; e += own.kStep) {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{own.row, e});
      P::store_elements(f, s, a, Cursor{own.row, e});
    }
  }
  if (own.first == 0) P::store_row(s, a, Cursor{own.row, 0});
}

template <class P, class C, int I>
cudaError_t spread_strided_from(const typename P::Args& a, float* parts, cudaStream_t stream) {
  constexpr int64_t kRows = C::kWidth * C::kVec;
  const auto groups = static_cast<unsigned>((P::rows(a) + kRows - 1) / kRows);
  if constexpr (I < P::kStages) {
    constexpr int kEnd = end_of_reading<P>(I);
    const Grid grid{groups * C::kParts, C::kThreads, stream};
    const cudaError_t error =
        launch(spread_strided_reading<P, C, Reading<I, kEnd>>, grid, a, parts);
    return error == cudaSuccess ? spread_strided_from<P, C, kEnd>(a, parts, stream) : error;
  } else {
    const Grid grid{groups * kStridedStoringBlocks<P, C>, C::kThreads, stream};
    return launch(spread_strided_store<P, C>, grid, a, parts);
  }
}

template <class P, class C>
cudaError_t spread_strided(const typename P::Args& a, float* parts, cudaStream_t stream) {
  if (P::elements(a) <= C::kShort) return strided<P, C>(a, stream);
  return spread_strided_from<P, C, 0>(a, parts, stream);
}

}  // namespace kw
