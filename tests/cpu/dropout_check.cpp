// The kernel of dropout masks, thread by thread on the host; for test_dropout.py.
#include "dropout.cuh"

namespace {

template <int kVec>
void run(const kw::DropoutMask& m) {
  for (int64_t step = 0; step < kw::dropout::steps(m, kVec); ++step) {
    for (uint64_t thread = 0; thread < uint64_t{m.blocks} * kw::dropout::kThreads; ++thread) {
      kw::dropout::keep<kVec>(m, thread, step);
    }
  }
}

}  // namespace

extern "C" void philox(uint64_t seed, uint64_t draw, uint64_t sequence, uint32_t* words) {
  const kw::RandomWords drawn = kw::philox(kw::RandomKeys(seed), draw, sequence);
  for (int i = 0; i < 4; ++i) words[i] = drawn.words[i];
}

extern "C" float uniform(uint32_t word) {
  return kw::uniform(word);
}

extern "C" uint32_t words_below(float bound) {
  return kw::words_below(bound);
}

extern "C" void mask(bool* out, uint64_t seed, uint64_t drawn, int64_t count, unsigned blocks,
                     float keep, int vec) {
  const kw::DropoutMask m{out, kw::RandomKeys(seed), drawn, count, blocks, kw::words_below(keep)};
  if (vec == 8) run<8>(m);
  if (vec == 4) run<4>(m);
  if (vec == 2) run<2>(m);
  if (vec == 1) run<1>(m);
}
