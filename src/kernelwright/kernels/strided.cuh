// Row programs on the GPU where rows, not elements, are neighbours in memory.
//
// A block takes kWidth x kVec neighbouring rows, a thread kVec of them, and kDepth threads share
// the elements of each row: a warp's loads are whole cache lines. Partial results meet in shared
// memory in a fixed order; every reading goes over the elements again.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

// One place for all reductions of a kernel, which take turns.
template <class P, class C>
struct DepthPartials {
  using Type = AnyTotalOf<P>[C::kDepth][C::kWidth * C::kVec];
  static __device__ __forceinline__ Type& get() {
    __shared__ Type partial;
    return partial;
  }
};

// Combine over the kDepth threads that share rows. Everyone gets the result. Neighbouring threads
// are in neighbouring banks of shared memory, whatever V is.
template <class P, class C, int I, class T = TotalOf<P, I>>
__device__ __forceinline__ Vec<C::kVec, T> reduce_depth(Vec<C::kVec, T> total) {
  constexpr int V = C::kVec;
  if constexpr (C::kDepth > 1) {
    constexpr Combine kOp = P::kCombine[I];
    auto& partial = DepthPartials<P, C>::get();
    const int x = threadIdx.x % C::kWidth;
    const int y = threadIdx.x / C::kWidth;
    __syncthreads();  // the previous stage may still read
    KW_LANES
    for (int v = 0; v < V; ++v) partial[y][v * C::kWidth + x] = total[v];
    for (int half = C::kDepth / 2; half > 0; half /= 2) {
      __syncthreads();
      if (y >= half) continue;
      KW_LANES
      for (int v = 0; v < V; ++v) {
        auto& above = partial[y][v * C::kWidth + x];
        const auto below = partial[y + half][v * C::kWidth + x];
        above = combine<kOp>(static_cast<T>(above), static_cast<T>(below));
      }
    }
    __syncthreads();
    KW_LANES
    for (int v = 0; v < V; ++v) total[v] = static_cast<T>(partial[0][v * C::kWidth + x]);
  }
  return total;
}

// What the stages of a reading have come to, for V rows.
template <class P, class Reading, int V>
struct Totals {
  template <class, int I>
  using Each = Vec<V, TotalOf<P, I>>;
  OfStages<P, Each, Reading::kFirst, Reading::kEnd> totals;

  __device__ __forceinline__ Totals() {
    for_each_stage_of(Reading{}, [&](auto stage) {
      constexpr int I = decltype(stage)::value;
      fill(totals.of(stage), identity<P::kCombine[I], TotalOf<P, I>>());
    });
  }

  template <class S>
  __device__ __forceinline__ auto& operator[](S stage) {
    return totals.of(stage);
  }

  // Elements at.element, and so on by `step` up to `end`, kAtOnce of them without waiting.
  __device__ __forceinline__ void add_all(const typename P::template Scalars<V>& s,
                                          const typename P::Args& a, Cursor at, int64_t step,
                                          int64_t end) {
    constexpr int kAtOnce = V < 4 ? 8 : 4;
    for (; at.element + (kAtOnce - 1) * step < end; at.element += kAtOnce * step) {
      add<kAtOnce>(s, a, at, step);
    }
    for (; at.element < end; at.element += step) add<1>(s, a, at, step);
  }

 private:
  // Of a sum that is a double so many are summed as floats first: exactly, if they are equal.
  template <int N>
  __device__ __forceinline__ void add(const typename P::template Scalars<V>& s,
                                      const typename P::Args& a, Cursor at, int64_t step) {
    OfStages<P, Several<N, V>::template Of, Reading::kFirst, Reading::kEnd> several;
    KW_LANES
    for (int n = 0; n < N; ++n) {
      const Cursor here{at.row, at.element + n * step};
      typename P::template Fields<V> f;
      replay<P, Reading::kFirst, V, V>(f, s, a, here);
      for_each_stage_of(Reading{}, [&](auto stage) {
        several.of(stage).x[n] = P::contribution(stage, f, s, a, here);
      });
    }
    for_each_stage_of(Reading{}, [&](auto stage) {
      constexpr int I = decltype(stage)::value;
      constexpr Combine kOp = P::kCombine[I];
      auto& total = (*this)[stage];
      if constexpr (kIsCentre<P, I>) {
        KW_LANES
        for (int v = 0; v < V; ++v) {
          Vec<N> x;
          KW_LANES
          for (int n = 0; n < N; ++n) x[n] = several.of(stage).x[n][v];
          total[v] = combine<kOp>(total[v], fold_to_total<kOp, TotalOf<P, I>>(x));
        }
      } else {
        KW_LANES
        for (int n = 0; n < N; ++n) total = combined<kOp>(total, several.of(stage).x[n]);
      }
    });
  }
};

template <class P, class C>
__global__ void __launch_bounds__(C::kThreads) strided_kernel(const typename P::Args a) {
  await_turn();
  constexpr int V = C::kVec;
  const int y = threadIdx.x / C::kWidth;
  const int64_t wanted = (int64_t{blockIdx.x} * C::kWidth + threadIdx.x % C::kWidth) * V;
  const bool live = wanted < P::rows(a);
  const int64_t row = live ? wanted : P::rows(a) - V;  // idle threads repeat rows, store nothing
  const int64_t elements = P::elements(a);
  typename P::template Scalars<V> s;
  for_each_reading<P>([&](auto reading) {
    Totals<P, decltype(reading), V> totals;
    totals.add_all(s, a, Cursor{row, y}, C::kDepth, elements);
    for_each_stage_of(reading, [&](auto stage) {
      P::finish(stage, s, reduce_depth<P, C, stage.value>(totals[stage]), a);
    });
  });
  if (!live) return;
  if constexpr (P::kStoresElements) {
#pragma unroll 4
    for (int64_t e = y; e < elements; e += C::kDepth) {
      typename P::template Fields<V> f;
      replay<P, P::kStages, V, V>(f, s, a, Cursor{row, e});
      P::store_elements(f, s, a, Cursor{row, e});
    }
  }
  if (y == 0) P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
cudaError_t strided(const typename P::Args& a, cudaStream_t stream) {
  const int64_t rows = P::rows(a);
  if (rows == 0) return cudaSuccess;
  constexpr int64_t kRows = C::kWidth * C::kVec;
  const auto grid = static_cast<unsigned>((rows + kRows - 1) / kRows);
  return launch(strided_kernel<P, C>, Grid{grid, C::kThreads, stream}, a);
}

}  // namespace kw
