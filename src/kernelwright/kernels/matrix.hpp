// Products on the CPU: their operands, the registers they are made in, and one number by itself.
//
// A product is out[i][j] = sum_k left(i, k) right(j, k) + bias[j]: both operands are rows along the
// depth, wherever strides put them. Kernels take the rows of one side, the streamed one, as they
// lie, each number once, and those of the other as they have packed them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>

#include "across.hpp"
#include "tile.hpp"

namespace kw {

KW_FN Lanes load_lanes(const float* at) {
  Lanes x;
  __builtin_memcpy(&x, at, sizeof x);
  return x;
}

KW_FN void store_lanes(float* at, Lanes x) {
  __builtin_memcpy(at, &x, sizeof x);
}

// The first `count` of a vector's numbers, with zeros behind; what is not asked for is not read.
KW_FN Lanes load_first(const float* at, int64_t count) {
#ifdef __AVX512F__
  Lanes x;
  const auto mask = static_cast<uint16_t>((1u << count) - 1);
  __asm__("vmovups %1, %0%{%2%}%{z%}"
          : "=v"(x)
          : "m"(*reinterpret_cast<const float (*)[kLanes]>(at)), "Yk"(mask));
  return x;
#else
  Lanes x{};
  for (int64_t i = 0; i < count; ++i) x[i] = at[i];
  return x;
#endif
}

KW_FN void store_first(float* at, Lanes x, int64_t count) {
#ifdef __AVX512F__
  const auto mask = static_cast<uint16_t>((1u << count) - 1);
  __asm__("vmovups %1, %0%{%2%}"
          : "+m"(*reinterpret_cast<float (*)[kLanes]>(at))
          : "v"(x), "Yk"(mask));
#else
  for (int64_t i = 0; i < count; ++i) at[i] = x[i];
#endif
}

// By halves, as accurate as it is short.
KW_FN float total_of(Lanes x) {
  float t[kLanes];
  store_lanes(t, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  }
  return t[0];
}

#ifdef KW_SHUFFLES

// Lanes whose number has the bit S are of `second`, the others of `first`; each with the lane that
// differs in that bit.
template <int S, int... I>
KW_FN Lanes add_across(Lanes first, Lanes second, std::integer_sequence<int, I...>) {
  const Lanes own = __builtin_shufflevector(first, second, (I & S ? kLanes + I : I)...);
  const Lanes other = __builtin_shufflevector(first, second, (I & S ? kLanes + (I ^ S) : I ^ S)...);
  return own + other;
}

// The totals of N vectors: of the vector i in every lane whose number is i modulo N.
template <int N, int S = kLanes / 2>
KW_FN Lanes totals_of(Lanes* x) {
  if constexpr (S == 0) {
    return x[0];
  } else {
    constexpr int kLeft = S < N ? S : N;
#pragma GCC unroll 16
    for (int i = 0; i < kLeft; ++i) {
      x[i] = add_across<S>(x[i], x[S < N ? i + S : i], std::make_integer_sequence<int, kLanes>{});
    }
    return totals_of<kLeft, S / 2>(x);
  }
}

#else

template <int N>
KW_FN Lanes totals_of(Lanes* x) {
  Lanes totals{};
  for (int i = 0; i < N; ++i) totals[i] = total_of(x[i]);
  return totals;
}

#endif

// Rows of numbers by two strides, in elements.
struct Matrix {
  const float* data;
  int64_t rows;
  int64_t row;
  int64_t depth;

  KW_FN const float* at(int64_t r, int64_t k) const { return data + r * row + k * depth; }
};

struct Product {
  Matrix left;
  Matrix right;
  const float* bias;
  float* out;
  int64_t depth;
};

// Memory that a thread keeps from call to call: fresh pages cost more than what is written there.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  ~Room() { ::operator delete[](data_, kLine); }

  void* bytes(int64_t count) {
    if (count > size_) {
      ::operator delete[](data_, kLine);
      data_ = nullptr;
      size_ = 0;
      data_ = ::operator new[](static_cast<size_t>(count), kLine);
      size_ = count;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t kLine{64};
  void* data_ = nullptr;
  int64_t size_ = 0;
};

// One number of a product, in double precision: nothing that is finite overflows on the way.
inline float one_product(const Matrix& left, int64_t i, const Matrix& right, int64_t j,
                         int64_t depth) {
  const float* const x = left.at(i, 0);
  const float* const y = right.at(j, 0);
  double sum = 0.0;
  if (left.depth == 1 && right.depth == 1) {
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < depth; ++k) sum += static_cast<double>(x[k]) * y[k];
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < depth; ++k) {
      sum += static_cast<double>(x[k * left.depth]) * y[k * right.depth];
    }
  }
  return static_cast<float>(sum);
}

// Declared here: a file that is compiled without OpenMP may have no header of it.
#ifdef _OPENMP
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();

inline int team_part() {
  return omp_get_thread_num();
}
inline int team_parts() {
  return omp_get_num_threads();
}
#else
inline int team_part() {
  return 0;
}
inline int team_parts() {
  return 1;
}
#endif

// The part of `count` things that a thread of a team has, in whole units.
struct Share {
  int64_t begin;
  int64_t end;
  Share(int64_t count, int64_t unit, int64_t part, int64_t parts) {
    const int64_t units = (count + unit - 1) / unit;
    begin = std::min(units * part / parts * unit, count);
    end = std::min(units * (part + 1) / parts * unit, count);
  }
};

}  // namespace kw
