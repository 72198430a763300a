// Runs every CUDA template and every main loop once on small, awkward sizes, for compute-sanitizer:
// test_sanitizer.py compiles and runs this. The values are checked elsewhere.
#include "sanitized_attention.cuh"
#include "sanitized_convs.cuh"
#include "sanitized_products.cuh"
#include "sanitized_rows.cuh"

int main() {
  sanitized::convolutions();
  sanitized::rows();
  sanitized::products();
  sanitized::attentions();
  std::printf("%d failed\n", sanitized::failures);
  return sanitized::failures != 0;
}
