// Tiles between channels first and channels last, against plain loops. Prints how many numbers of
// how many are wrong, and the side of the blocks that are turned in registers.
#include <cstdio>
#include <vector>

#include "tiled.hpp"

// Of A channels and R places: the first operand to the other order, doubled; the second one back.
template <int A, int R>
struct Turn {
  struct Args {
    const float* first;
    const float* last;
    float* to_last;
    float* to_first;
    int64_t batch;
  };
  static int64_t rows(const Args& a) { return a.batch * A; }
  static int64_t elements(const Args&) { return R; }

  template <int V>
  struct Fields {
    kw::Tile<V> last_tile;
    kw::Tile<V> to_last_tile;
  };
  template <int L>
  struct Scalars {};

  template <int V, int L>
  static void store_elements(Fields<V>& f, const Scalars<L>&, const Args& a, kw::Cursor at) {
    const int64_t across = at.row / A * A * R + at.row % A + at.element * A;
    auto to_last = kw::store_across<V, A, A>(f.to_last_tile, a.to_last + across, at.row);
    auto to_first = kw::store_row<V>(a.to_first + at.row * R + at.element);
    const auto first = kw::load_row<V>(a.first + at.row * R + at.element);
    const auto last = kw::load_across<V, A, A>(f.last_tile, a.last + across, at.row);
    for (int v = 0; v < V; ++v) {
      to_last[v] = 2 * first[v];
      to_first[v] = 3 * last[v];
    }
    to_last.commit();
    to_first.commit();
  }
};

template <int A, int R>
struct Config {
  static constexpr int kVec = R < 16 ? R : 16;
  static constexpr int kRun = R;
  static constexpr int kAcross = A;
};

template <int A, int R>
void check(int& wrong, int& all) {
  const int64_t batch = 3, count = batch * A * R;
  std::vector<float> first(count), last(count), to_last(count, -1.0f), to_first(count, -1.0f);
  for (int64_t i = 0; i < count; ++i) {
    first[i] = static_cast<float>(i);
    last[i] = static_cast<float>(count - i);
  }
  kw::tiled<Turn<A, R>, Config<A, R>>(
      {first.data(), last.data(), to_last.data(), to_first.data(), batch}, 2);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t c = 0; c < A; ++c) {
      for (int64_t p = 0; p < R; ++p) {
        const int64_t f = (n * A + c) * R + p, l = (n * R + p) * A + c;
        wrong += to_last[l] != 2 * first[f];
        wrong += to_first[f] != 3 * last[l];
        all += 2;
      }
    }
  }
}

int main() {
  int wrong = 0, all = 0;
  check<64, 196>(wrong, all);
  check<16, 64>(wrong, all);
  check<20, 72>(wrong, all);
  check<3, 99>(wrong, all);
  check<37, 1>(wrong, all);
  check<33, 12>(wrong, all);
  std::printf("%d of %d wrong, blocks of %d\n", wrong, all, kw::kTurned);
  return wrong != 0;
}
