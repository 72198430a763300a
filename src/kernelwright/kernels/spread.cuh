// Row programs on the GPU for few rows of any length: kParts blocks, all over the GPU, share a row.
//
// Each reading is a launch. A block leaves the results of its part in memory, and the blocks of the
// next launch all add up the parts of the stages before, in one order: results repeat bit for bit,
// and nobody waits for another block. The last launch stores. Rows of up to kShort elements are not
// worth that: they are streamed.
//   parts: for each row and stage room for kParts numbers, of the size of the largest total
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "reduce.cuh"
#include "streaming.cuh"

namespace kw {

// A block's part of a row that kBlocks share: every so many-th run of kThreads chunks.
template <class P, class C, int kBlocks>
struct Part {
  static constexpr int64_t kStep = int64_t{C::kThreads} * C::kVec * kBlocks;
  int64_t row = blockIdx.x / kBlocks;
  int part = static_cast<int>(blockIdx.x % kBlocks);
  int64_t first = (int64_t{C::kThreads} * part + threadIdx.x) * C::kVec;

  template <int I>
  __device__ TotalOf<P, I>* results(float* parts) const {
    auto* const all = reinterpret_cast<AnyTotalOf<P>*>(parts);
    return reinterpret_cast<TotalOf<P, I>*>(all + (row * P::kStages + I) * C::kParts);
  }

  // What follows from the stages before I.
  template <int I>
  __device__ __forceinline__ void collect(typename P::template Scalars<1>& s, float* parts,
                                          const typename P::Args& a) const {
    if constexpr (I > 0) {
      collect<I - 1>(s, parts, a);
      constexpr Combine kOp = P::kCombine[I - 1];
      using T = TotalOf<P, I - 1>;
      const T* from = results<I - 1>(parts);
      T total = identity<kOp, T>();
      for (int i = threadIdx.x; i < C::kParts; i += C::kThreads)
        total = combine<kOp>(total, from[i]);
      P::finish(Stage<I - 1>{}, s, Vec<1, T>{{reduce_threads<kOp, C::kThreads>(total)}}, a);
    }
  }
};

template <class P, class C, class Reading>
__global__ void __launch_bounds__(C::kThreads)
    spread_reading(const typename P::Args a, float* parts) {
  await_turn();
  const Part<P, C, C::kParts> own;
  typename P::template Scalars<1> s;
  own.template collect<Reading::kFirst>(s, parts, a);
  const int64_t elements = P::elements(a);
  OfStages<P, TotalOf, Reading::kFirst, Reading::kEnd> totals;
  for_each_stage_of(Reading{}, [&](auto stage) {
    constexpr int I = decltype(stage)::value;
    totals.of(stage) = identity<P::kCombine[I], TotalOf<P, I>>();
  });
#pragma unroll 4
  for (int64_t e = own.first; e < elements; e += own.kStep) {
    typename P::template Fields<C::kVec> f;
    replay<P, Reading::kFirst, C::kVec, 1>(f, s, a, Cursor{own.row, e});
    for_each_stage_of(Reading{}, [&](auto stage) {
      constexpr Combine kOp = P::kCombine[stage.value];
      const Vec<C::kVec> x = P::contribution(stage, f, s, a, Cursor{own.row, e});
      auto& total = totals.of(stage);
      total = combine<kOp>(total, TotalOf<P, stage.value>{combine_lanes<kOp>(x)});
    });
  }
  for_each_stage_of(Reading{}, [&](auto stage) {
    constexpr int I = decltype(stage)::value;
    const auto total = reduce_threads<P::kCombine[I], C::kThreads>(totals.of(stage));
    if (threadIdx.x == 0) own.template results<I>(parts)[own.part] = total;
  });
}

template <class P, class C>
constexpr int kStoringBlocks = P::kStoresElements ? C::kParts : 1;

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads)
    spread_store(const typename P::Args a, float* parts) {
  await_turn();
  const Part<P, C, kStoringBlocks<P, C>> own;
  typename P::template Scalars<1> s;
  own.template collect<P::kStages>(s, parts, a);
  if constexpr (P::kStoresElements) {
    const int64_t elements = P::elements(a);
#pragma unroll 4
    for (int64_t e = own.first; e < elements; e += own.kStep) {
      typename P::template Fields<C::kVec> f;
      replay<P, P::kStages, C::kVec, 1>(f, s, a, Cursor{own.row, e});
      P::store_elements(f, s, a, Cursor{own.row, e});
    }
  }
  if (own.first == 0) P::store_row(s, a, Cursor{own.row, 0});
}

template <class P, class C, int I>
cudaError_t spread_from(const typename P::Args& a, float* parts, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(P::rows(a));
  if constexpr (I < P::kStages) {
    constexpr int kEnd = end_of_reading<P>(I);
    const Grid grid{rows * C::kParts, C::kThreads, stream};
    const cudaError_t error = launch(spread_reading<P, C, Reading<I, kEnd>>, grid, a, parts);
    return error == cudaSuccess ? spread_from<P, C, kEnd>(a, parts, stream) : error;
  } else {
    const Grid grid{rows * kStoringBlocks<P, C>, C::kThreads, stream};
    return launch(spread_store<P, C>, grid, a, parts);
  }
}

template <class P, class C>
cudaError_t spread(const typename P::Args& a, float* parts, cudaStream_t stream) {
  if (P::elements(a) <= C::kShort) return streaming<P, C>(a, stream);
  return spread_from<P, C, 0>(a, parts, stream);
}

}  // namespace kw
