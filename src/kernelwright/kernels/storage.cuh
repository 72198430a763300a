// How elements lie in memory and in registers: storage types, lane vectors, loads and stores.
//
// Arithmetic is float32 everywhere; half_t and bfloat16_t exist in memory alone. A program works on V
// lanes at a time, neighbours along the axis that is contiguous in memory. On the device a unit-stride
// load is one vector instruction; on the host it is a view that the compiler vectorises through.
#pragma once

#include "scalar.cuh"

// Before a loop over lanes: unrolled on the device, vectorised on the host.
#if defined(__CUDA_ARCH__)
#define KW_LANES _Pragma("unroll")
#elif defined(__CUDACC__)
#define KW_LANES
#else
#define KW_LANES _Pragma("omp simd")
#endif

namespace kw {

struct half_t {
  uint16_t bits;
};

struct bfloat16_t {
  uint16_t bits;
};

KW_FN float to_float(float x) { return x; }
KW_FN float to_float(bool x) { return x ? 1.0f : 0.0f; }
KW_FN float to_float(bfloat16_t x) { return detail::from_bits(uint32_t{x.bits} << 16); }

KW_FN float to_float(half_t x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  // Exponent and mantissa as float bits, rescaled by 2^112: exact for subnormals too.
  const uint32_t magnitude = (uint32_t{x.bits} & 0x7fff) << 13;
  const float scaled = detail::from_bits(magnitude) * 0x1p112f;
  const bool special = magnitude >= 0x7c00u << 13;
  const uint32_t bits = special ? magnitude | 0x7f800000 : detail::to_bits(scaled);
  return detail::from_bits(bits | (uint32_t{x.bits} & 0x8000) << 16);
#endif
}

template <class T>
KW_FN T from_float(float x);

template <>
KW_FN float from_float<float>(float x) {
  return x;
}

template <>
KW_FN bool from_float<bool>(float x) {
  return x != 0.0f;
}

template <>
KW_FN bfloat16_t from_float<bfloat16_t>(float x) {
  const uint32_t bits = detail::to_bits(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x == x ? rounded : 0x7fc0)};
}

template <>
KW_FN half_t from_float<half_t>(float x) {
#ifdef __CUDA_ARCH__
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const uint32_t sign = detail::to_bits(x) >> 16 & 0x8000;
  const float magnitude = ::fabsf(x);
  // Adding a power of two whose last bit is half's last bit rounds to nearest even in one step.
  const uint32_t exponent = detail::to_bits(magnitude) & 0x7f800000;
  const uint32_t floor = 113u << 23;  // half's smallest normal exponent
  const float magic = detail::from_bits((exponent > floor ? exponent : floor) + (13u << 23));
  const float rounded = (magnitude + magic) - magic;
  const bool subnormal = rounded < 0x1p-14f;
  const uint32_t normal_bits = (detail::to_bits(rounded) - (112u << 23)) >> 13;
  const uint32_t small_bits = static_cast<uint32_t>(static_cast<int32_t>(rounded * 0x1p24f));
  uint32_t bits = subnormal ? small_bits : normal_bits;
  bits = magnitude >= 65520.0f ? 0x7c00 : bits;
  bits = x == x ? bits : 0x7e00;
  return {static_cast<uint16_t>(sign | bits)};
#endif
}

// V floats, one per lane. A single one stands for every lane.
template <int V>
struct Vec {
  float lanes[V];
  KW_FN float& operator[](int v) { return lanes[V == 1 ? 0 : v]; }
  KW_FN float operator[](int v) const { return lanes[V == 1 ? 0 : v]; }
};

// Lanes that all see the same element, or elements a fixed stride apart.
template <class T>
struct Strided {
  const T* at;
  int64_t stride;
  KW_FN float operator[](int v) const { return to_float(at[v * stride]); }
};

template <int V, class T>
KW_FN Vec<1> load_same(const T* at) {
  return {{to_float(*at)}};
}

template <int V, class T>
KW_FN Strided<T> load_strided(const T* at, int64_t stride) {
  return {at, stride};
}

#ifdef __CUDACC__

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T items[V];
};

template <int V, class T>
KW_FN Vec<V> load_row(const T* at) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(at);
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
}

// As load_row, for data that nobody reads again: it does not displace parameters from the L1 cache.
template <int V, class T>
KW_FN Vec<V> load_once(const T* at) {
#ifdef __CUDA_ARCH__
  constexpr int kBytes = sizeof(T) * V;
  Pack<T, V> pack;
  if constexpr (kBytes == 16) {
    uint32_t w[4];
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(at));
    __builtin_memcpy(&pack, w, sizeof w);
  } else {
    pack = *reinterpret_cast<const Pack<T, V>*>(at);
  }
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
#else
  return load_row<V>(at);
#endif
}

// Lanes on their way to memory: one vector store when they are complete.
template <int V, class T>
struct RowOut {
  T* at;
  Vec<V> lanes;
  KW_FN float& operator[](int v) { return lanes[v]; }
  KW_FN void commit() const {
    Pack<T, V> pack;
    KW_LANES
    for (int v = 0; v < V; ++v) pack.items[v] = from_float<T>(lanes.lanes[v]);
    *reinterpret_cast<Pack<T, V>*>(at) = pack;
  }
};

template <int V, class T>
KW_FN RowOut<V, T> store_row(T* at) {
  return {at, {}};
}

#else

template <class T>
struct Row {
  const T* at;
  KW_FN float operator[](int v) const { return to_float(at[v]); }
};

template <int V, class T>
KW_FN Row<T> load_row(const T* at) {
  return {at};
}

#endif

#ifndef __CUDACC__
template <int V, class T>
KW_FN Row<T> load_once(const T* at) {
  return {at};
}
#endif

// Lanes that are written where they belong as soon as they are known.
template <class T>
struct StridedOut {
  T* at;
  int64_t stride;
  struct Slot {
    T* at;
    KW_FN void operator=(float x) const { *at = from_float<T>(x); }
  };
  KW_FN Slot operator[](int v) const { return {at + v * stride}; }
  KW_FN void commit() const {}
};

template <int V, class T>
KW_FN StridedOut<T> store_strided(T* at, int64_t stride) {
  return {at, stride};
}

#ifndef __CUDACC__
template <int V, class T>
KW_FN StridedOut<T> store_row(T* at) {
  return {at, 1};
}
#endif

}  // namespace kw
