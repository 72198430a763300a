// Philox4x32-10 (Salmon et al., Random123), as cuRAND and torch use it: the n-th four numbers of a
// thread's sequence are a function of the seed, n and the thread, with no state in between.
#pragma once

#include "scalar.cuh"

namespace kw {

struct RandomWords {
  uint32_t words[4];
};

// The keys of the ten rounds. A kernel is given them: each would be an addition for every draw.
struct RandomKeys {
  uint32_t low[10];
  uint32_t high[10];

  explicit RandomKeys(uint64_t seed) {
    for (int round = 0; round < 10; ++round) {
      low[round] = static_cast<uint32_t>(seed) + static_cast<uint32_t>(round) * 0x9E3779B9u;
      high[round] = static_cast<uint32_t>(seed >> 32) + static_cast<uint32_t>(round) * 0xBB67AE85u;
    }
  }
};

// Ten rounds on the counter (draw, sequence).
KW_FN RandomWords philox(const RandomKeys& keys, uint64_t draw, uint64_t sequence) {
  uint32_t c0 = static_cast<uint32_t>(draw), c1 = static_cast<uint32_t>(draw >> 32);
  uint32_t c2 = static_cast<uint32_t>(sequence), c3 = static_cast<uint32_t>(sequence >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53u} * c0;
    const uint64_t right = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(right >> 32) ^ c1 ^ keys.low[round];
    c1 = static_cast<uint32_t>(right);
    c2 = static_cast<uint32_t>(left >> 32) ^ c3 ^ keys.high[round];
    c3 = static_cast<uint32_t>(left);
  }
  return {{c0, c1, c2, c3}};
}

// A number in (0, 1]. Both steps round as cuRAND's do, fused or not: the factor is a power of two.
KW_FN float uniform(uint32_t word) {
  return static_cast<float>(word) * 0x1p-32f + 0x1p-33f;
}

// How many words give a number below the bound, which is at most one: these are the first ones.
inline uint32_t words_below(float bound) {
  uint32_t found = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (uniform(found + bit - 1) < bound) found += bit;
  }
  return found;
}

}  // namespace kw
