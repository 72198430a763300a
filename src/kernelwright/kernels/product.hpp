// Products of float32 matrices on the CPU, each in the way that its sizes and the machine ask for.
//
// Few rows along the depth are dots (dots.hpp), a few more if it is little work. Others are made of
// thirds where there is a matrix unit (thirds.hpp), else of tiles of vectors (tiles.hpp). Every
// number of the result is the same sum in the same order whatever the number of threads.
#pragma once

#include "dots.hpp"
#include "thirds.hpp"
#include "tiles.hpp"

namespace kw {

#ifdef KW_THIRDS
inline constexpr int64_t kFewRows = 8;
inline constexpr int64_t kSomeRows = 20;
#else
inline constexpr int64_t kFewRows = 32;
inline constexpr int64_t kSomeRows = 32;
#endif
inline constexpr int64_t kLittleWork = int64_t{24} << 20;  // multiplications
// A team of threads costs as much as so many multiplications.
inline constexpr int64_t kTeamWork = int64_t{1} << 18;

inline void multiply_one(const Product& g, int threads) {
  const int64_t less = std::min(g.left.rows, g.right.rows);
  const bool little = g.left.rows * g.right.rows * g.depth < kLittleWork;
  if (g.left.depth == 1 && g.right.depth == 1 && less <= (little ? kSomeRows : kFewRows)) {
    return dots(g, threads);
  }
#ifdef KW_THIRDS
  if (has_thirds()) return Thirds(g).run(threads);
#endif
  LaneTiles(g).run(threads);
}

// An axis of a batch: so many products, with operands so many numbers apart.
struct BatchAxis {
  int64_t count;
  int64_t left;
  int64_t right;
};

// A batch of products; results lie behind one another.
inline void multiply(const Product& g, const BatchAxis& outer, const BatchAxis& inner,
                     int threads) {
  const int64_t batch = outer.count * inner.count;
  const int64_t results = g.left.rows * g.right.rows;
  if (g.depth == 0) {
    for (int64_t i = 0; i < batch * results; ++i) {
      g.out[i] = g.bias ? g.bias[i % g.right.rows] : 0.0f;
    }
    return;
  }
  if (batch * results * g.depth < kTeamWork) threads = 1;
  const auto one = [&](int64_t b, int team) {
    Product part = g;
    part.left.data += b / inner.count * outer.left + b % inner.count * inner.left;
    part.right.data += b / inner.count * outer.right + b % inner.count * inner.right;
    part.out += b * results;
    if (results > 0) multiply_one(part, team);
  };
  // Threads inside of threads would be started anew for each product.
  if (batch > 1 && batch >= threads && threads > 1) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t b = 0; b < batch; ++b) one(b, 1);
  } else {
    for (int64_t b = 0; b < batch; ++b) one(b, threads);
  }
}

}  // namespace kw
