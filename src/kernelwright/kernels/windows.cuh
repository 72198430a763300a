// Row programs on the GPU whose rows are windows that begin within one another: pools, depthwise
// convolutions.
//
// A thread takes kVec windows below each other, so that what they share is loaded once (a row of
// the operand that two of them see, a weight that all of them multiply by); its neighbours in the
// warp take the windows beside, so that loads are whole cache lines. The window is unrolled. The
// last rows of a program are kAcross windows beside each other by kRun below each other.
#pragma once

#include <cuda_runtime.h>

#include "launch.cuh"
#include "program.cuh"

namespace kw {

// Which row a thread begins with, counted in threads. The last one of a column begins early enough
// to have kVec rows: the first of these are its neighbour's too.
template <class C, class Number>
__device__ __forceinline__ Number first_row(Number thread) {
  if constexpr (C::kVec == 1) {
    return thread;
  } else {
    constexpr Number kDown = (C::kRun + C::kVec - 1) / C::kVec;
    constexpr Number kLast = C::kRun - C::kVec;
    const Number across = thread % C::kAcross;
    const Number down = thread / C::kAcross % kDown * C::kVec;
    const Number rest = thread / (C::kAcross * kDown);
    return (rest * C::kAcross + across) * C::kRun + (down + C::kVec <= C::kRun ? down : kLast);
  }
}

template <class Number, class P, class C>
__device__ __forceinline__ void run_windows(const typename P::Args& a, Number threads) {
  constexpr int V = C::kVec;
  const Number thread = static_cast<Number>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (thread >= threads) return;
  const auto row = static_cast<int64_t>(first_row<C>(thread));
  typename P::template Scalars<V> s;
  for_each_stage<P>([&](auto stage) {
    constexpr int I = decltype(stage)::value;
    constexpr Combine kOp = P::kCombine[I];
    Vec<V> total;
    KW_LANES
    for (int v = 0; v < V; ++v) total[v] = identity<kOp>();
    KW_LANES
    for (int e = 0; e < P::kElements; ++e) {
      typename P::template Fields<V> f;
      replay<P, I, V, V>(f, s, a, Cursor{row, e});
      const Vec<V> x = P::contribution(stage, f, s, a, Cursor{row, e});
      KW_LANES
      for (int v = 0; v < V; ++v) total[v] = combine<kOp>(total[v], x[v]);
    }
    P::finish(stage, s, total, a);
  });
  P::store_row(s, a, Cursor{row, 0});
}

template <class P, class C>
int64_t window_threads(const typename P::Args& a) {
  const int64_t columns = P::rows(a) / C::kRun;
  return columns * ((C::kRun + C::kVec - 1) / C::kVec);
}

// With 32 bits the divisions by which a program finds its places take a fraction of the time.
template <class P, class C>
__global__ void __launch_bounds__(C::kThreads)
    windows_kernel(const typename P::Args a, const int64_t threads) {
  await_turn();
  if (P::rows(a) < int64_t{1} << 31) {
    run_windows<uint32_t, P, C>(a, static_cast<uint32_t>(threads));
  } else {
    run_windows<uint64_t, P, C>(a, static_cast<uint64_t>(threads));
  }
}

template <class P, class C>
cudaError_t windows(const typename P::Args& a, cudaStream_t stream) {
  const int64_t threads = window_threads<P, C>(a);
  if (threads == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((threads + C::kThreads - 1) / C::kThreads);
  return launch(windows_kernel<P, C>, Grid{grid, C::kThreads, stream}, a, threads);
}

}  // namespace kw
