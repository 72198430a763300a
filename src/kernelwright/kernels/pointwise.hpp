// Row programs without a reduction, on the CPU: blocks of elements, OpenMP over blocks.
#pragma once

#include "chunks.hpp"

namespace kw {

template <class P, class C>
void pointwise(const typename P::Args& a, int threads) {
  constexpr int64_t kBlock = 4096;
  const int64_t elements = P::elements(a);
  const int64_t per_row = (elements + kBlock - 1) / kBlock;
#pragma omp parallel for num_threads(threads_for<P>(a, threads)) schedule(static)
  for (int64_t i = 0; i < P::rows(a) * per_row; ++i) {
    const int64_t begin = i % per_row * kBlock;
    const int64_t end = std::min(begin + kBlock, elements);
    for_each_chunk<C::kVec, 0>(begin, end, end - begin,
                               [&](auto lanes, int64_t, int64_t e) KW_INLINE {
                                 typename P::template Fields<decltype(lanes)::value> f;
                                 const typename P::template Scalars<1> s{};
                                 P::store_elements(f, s, a, Cursor{i / per_row, e});
                               });
  }
}

}  // namespace kw
