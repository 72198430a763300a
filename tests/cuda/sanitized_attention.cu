// For compute-sanitizer: attention.
#include "sanitized_memory.cuh"

namespace sanitized {

// Samples of six heads, each [rows, depth] in memory, or the other way if kAcross.
template <int kRows, int kDepth, bool kAcross>
kw::Operand heads(const void* at) {
  constexpr int64_t kHead = int64_t{kRows} * kDepth;
  return {at, 6 * kHead, kHead, kAcross ? 1 : kDepth, kAcross ? kRows : 1};
}

template <class T>
const void* elements(int64_t count, float odd) {
  if constexpr (sizeof(T) == 2) return ones(count);
  return numbers(count, odd);
}

// The first `rows` queries of two samples. The rows of a value are its features.
template <class T, class C>
void attention(int rows, float odd, const char* what) {
  constexpr int kTokens = C::kAllKeys;
  constexpr int64_t kCount = int64_t{12} * kTokens * C::kDepth;
  static_assert(C::kDepth == C::kColumns);
  using Heads = HeadsTogether<6, kTokens, C::kColumns>;
  kw::AttentionOperands g{};
  g.query = heads<kTokens, C::kDepth, false>(elements<T>(kCount, odd));
  g.key = heads<kTokens, C::kDepth, C::kKeyAlong == 0>(elements<T>(kCount, odd));
  g.value = heads<C::kColumns, kTokens, C::kValueAlong == 0>(elements<T>(kCount, odd));
  g.batch = {2, 6};
  g.rows = rows;
  const BiasedScores::Args scores{numbers(48 * 294 + kTokens * 6)};
  const typename Heads::Args out{room<float>(kCount)};
  expect(kw::attend<T, BiasedScores, Heads, C>(g, scores, out, nullptr), what);
}

inline void attentions() {
  for (const float odd : {0.5f, kNaN}) {
    attention<float, Window>(Window::kAllKeys, odd, "attention, windows");
    attention<float, KeysAcross>(100, odd, "attention, keys across");
  }
  attention<kw::half_t, Sequence>(200, 0.5f, "attention, float16");
}

}  // namespace sanitized

int main() {
  sanitized::attentions();
  return 0;
}
