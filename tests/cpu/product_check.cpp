// Runs products of odd sizes in every layout for the sanitizers: operands end where memory does.
// The text of the header stands before this file.
#include <cstdio>
#include <cstdlib>
#include <vector>

static float* filled(int64_t count) {
  auto* const made = static_cast<float*>(std::malloc(static_cast<size_t>(count) * 4));
  for (int64_t i = 0; i < count; ++i) made[i] = static_cast<float>(i % 7 - 3);
  return made;
}

int main() {
  const int64_t sizes[][3] = {{1, 1, 1},    {3, 65, 47},  {20, 33, 100}, {21, 70, 129},
                              {40, 5, 700}, {70, 90, 33}, {33, 300, 64}, {280, 40, 150}};
  int wrong = 0;
  int count = 0;
  for (const auto& [rows, columns, depth] : sizes) {
    for (int layout = 0; layout < 4; ++layout) {
      float* const x = filled(rows * depth);
      float* const w = filled(columns * depth);
      float* const bias = filled(columns);
      float* const out = filled(rows * columns);
      const bool x_turned = layout & 1;
      const bool w_turned = layout & 2;
      const kw::Matrix left{x, rows, x_turned ? 1 : depth, x_turned ? rows : 1};
      const kw::Matrix right{w, columns, w_turned ? 1 : depth, w_turned ? columns : 1};
      const kw::Product g{left, right, bias, out, depth};
      kw::multiply(g, {1, 0, 0}, {1, 0, 0}, 2);
      // Sums of small whole numbers are exact.
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j, ++count) {
          float sum = bias[j];
          for (int64_t k = 0; k < depth; ++k) sum += *left.at(i, k) * *right.at(j, k);
          wrong += out[i * columns + j] != sum;
        }
      }
      std::free(x);
      std::free(w);
      std::free(bias);
      std::free(out);
    }
  }
  std::printf("%d of %d wrong\n", wrong, count);
  return wrong > 0;
}
