// Kernels in a row, from a table of numbers: Python crosses into C once for all of them.
//
// The table is {launches, bases, alignment, most operands, most sizes}, then for each launch
// {function, operands, sizes}, a base and a number of bytes for each operand, and the sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace kw {

constexpr int64_t kUnaligned = -1;

// The error of the launch that failed, with its number in the upper half. Two numbers are handed to
// every launch behind its sizes: the device and the stream, or the number of threads and nothing.
inline int64_t run_launches(const int64_t* table, char* const* bases, int64_t first,
                            int64_t second) {
  using Launcher = int (*)(void* const*, const int64_t*);
  const int64_t launches = table[0];
  for (int64_t i = 0; i < table[1]; ++i) {
    if (reinterpret_cast<intptr_t>(bases[i]) % table[2] != 0) return kUnaligned;
  }
  std::vector<void*> tensors(static_cast<size_t>(table[3]));
  std::vector<int64_t> numbers(static_cast<size_t>(table[4]) + 2);
  const int64_t* at = table + 5;
  for (int64_t launch = 0; launch < launches; ++launch) {
    const auto function = reinterpret_cast<Launcher>(at[0]);
    const auto operands = static_cast<size_t>(at[1]);
    const auto sizes = static_cast<size_t>(at[2]);
    at += 3;
    for (size_t i = 0; i < operands; ++i, at += 2) tensors[i] = bases[at[0]] + at[1];
    for (size_t i = 0; i < sizes; ++i) numbers[i] = *at++;
    numbers[sizes] = first;
    numbers[sizes + 1] = second;
    const int code = function(tensors.data(), numbers.data());
    if (code != 0) return (launch << 32) | code;
  }
  return 0;
}

}  // namespace kw
