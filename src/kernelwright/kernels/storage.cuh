// How elements lie in memory and in registers: lane vectors, loads and stores.
//
// Arithmetic is float32 everywhere; narrower types (half.cuh) exist in memory alone. A program
// works on V lanes at a time, neighbours along the axis that is contiguous in memory. On the device
// a unit-stride load is one vector instruction; on the host it is a view that the compiler
// vectorises through.
#pragma once

#include <utility>

#include "scalar.cuh"

// Before a loop over lanes: unrolled on the device, vectorised on the host.
#if defined(__CUDA_ARCH__)
#define KW_LANES _Pragma("unroll")
#elif defined(__CUDACC__)
#define KW_LANES
#else
#define KW_LANES _Pragma("omp simd")
#endif

// At a pointer to results: nothing else points there. GCC believes it of what a function is given.
// Without it one vector's chain of operations ends with its store before the next one's begins (a
// GELU takes 4.2 ms, with it 3.5: 2.5 M numbers, two cores of a Neoverse N1). On the device
// read_only says so of what is read.
#ifdef __CUDACC__
#define KW_RESTRICT
#else
#define KW_RESTRICT __restrict
#endif

namespace kw {

KW_FN float to_float(float x) {
  return x;
}
KW_FN float to_float(bool x) {
  return x ? 1.0f : 0.0f;
}
KW_FN float to_float(int64_t x) {
  return static_cast<float>(x);
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

// V numbers, one per lane. A single one stands for every lane.
template <int V, class T = float>
struct Vec {
  T lanes[V];
  KW_FN T& operator[](int v) { return lanes[V == 1 ? 0 : v]; }
  KW_FN T operator[](int v) const { return lanes[V == 1 ? 0 : v]; }
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

// Whether the place of each lane lies in a range. kNone: there is nothing beyond.
struct Within {
  static constexpr int kNone = INT32_MIN;
  int place;
  int step;
  int low;
  int high;
  KW_FN bool operator[](int v) const {
    const int at = place + v * step;
    return (low == kNone || at >= low) && (high == kNone || at < high);
  }
};

KW_FN bool holds(bool inside, int) {
  return inside;
}
KW_FN bool holds(const Within& inside, int v) {
  return inside[v];
}

// Lanes a stride apart, and 0 where one of the tests does not hold: nothing is read there.
template <int V, class T, class... Tests>
KW_FN Vec<V> load_inside(const T* at, int64_t stride, const Tests&... tests) {
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out[v] = (holds(tests, v) && ...) ? to_float(at[v * stride]) : 0.0f;
  return out;
}

#ifndef __CUDACC__
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define KW_SHUFFLES 1
#endif
#endif
#endif

#ifdef KW_SHUFFLES

// GCC shuffles number by number where the machine has no register of that size: a max pool by two
// over 2 M numbers takes 2.0 ms on AArch64 with sixteen, 0.5 with four.
#ifdef __aarch64__
inline constexpr int kPacked = 4;
#else
inline constexpr int kPacked = 16;
#endif

template <int V>
struct PackedLanes {
  typedef float type __attribute__((vector_size(V * sizeof(float))));
};

template <int V>
using Packed = typename PackedLanes<V>::type;

template <int V, int... I>
KW_FN Packed<V> every_second(Packed<V> low, Packed<V> high, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(low, high, (2 * I < V ? 2 * I : 2 * I + 1)...);
}

// V elements that are S apart, S a power of two, from runs of neighbours: the second one ends at
// the last element that is wanted, so that nothing beyond it is read. (Compilers take it by
// itself.)
template <int V, int S, class T>
KW_FN Packed<V> packed_every(const T* at) {
  if constexpr (S == 1) {
    Packed<V> out;
    for (int v = 0; v < V; ++v) out[v] = to_float(at[v]);
    return out;
  } else {
    const Packed<V> low = packed_every<V, S / 2>(at);
    const Packed<V> high = packed_every<V, S / 2>(at + (V - 1) * (S / 2));
    return every_second<V>(low, high, std::make_integer_sequence<int, V>{});
  }
}

#endif

// As load_strided, for a stride that is known.
template <int V, int S, class T>
KW_FN auto load_every(const T* at) {
#ifdef KW_SHUFFLES
  if constexpr (V >= 4 && (V & (V - 1)) == 0 && (S == 2 || S == 4)) {
    constexpr int W = V < kPacked ? V : kPacked;
    Vec<V> out;
    for (int from = 0; from < V; from += W) {
      const Packed<W> packed = packed_every<W, S>(at + from * S);
      KW_LANES
      for (int v = 0; v < W; ++v) out.lanes[from + v] = packed[v];
    }
    return out;
  } else
#endif
  {
    return Strided<T>{at, S};
  }
}

// As load_every, brought together first: what follows is in vectors then.
template <int V, int S, class T>
KW_FN Vec<V> load_apart(const T* at) {
  Vec<V> out;
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(at[int64_t{v} * S]);
  return out;
}

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T items[V];
};

// V neighbours where a test holds, and `beyond` elsewhere: nothing is read there. The compiler
// would make a branch of it, and no two of those are on their way together. To the compiler it is a
// function of its arguments, so `at` must come of something that is there only when memory is.
template <class P>
KW_FN P read_where(const P* at, bool test, const P& beyond) {
#ifdef __CUDA_ARCH__
  P pack = beyond;
  const auto read = static_cast<uint32_t>(test);
  uint32_t w[4];
  if constexpr (sizeof(P) == 16) {
    __builtin_memcpy(w, &beyond, sizeof beyond);
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
        "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
        : "l"(at), "r"(read));
    __builtin_memcpy(&pack, w, sizeof pack);
  } else if constexpr (sizeof(P) == 8) {
    __builtin_memcpy(w, &beyond, sizeof beyond);
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.global.nc.v2.b32 {%0, %1}, [%2];\n}"
        : "+r"(w[0]), "+r"(w[1])
        : "l"(at), "r"(read));
    __builtin_memcpy(&pack, w, sizeof pack);
  } else if constexpr (sizeof(P) == 4) {
    __builtin_memcpy(w, &beyond, sizeof beyond);
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.b32 %0, [%1];\n}"
        : "+r"(w[0])
        : "l"(at), "r"(read));
    __builtin_memcpy(&pack, w, sizeof pack);
  } else if constexpr (sizeof(P) == 2) {
    uint16_t bits;
    __builtin_memcpy(&bits, &beyond, sizeof beyond);
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.b16 %0, [%1];\n}"
        : "+h"(bits)
        : "l"(at), "r"(read));
    __builtin_memcpy(&pack, &bits, sizeof pack);
  } else {
    if (test) pack = *at;
  }
  return pack;
#else
  return test ? *at : beyond;
#endif
}

template <int V, class T>
KW_FN Vec<V> load_where(const T* at, bool test, float beyond) {
  Pack<T, V> outside;
  KW_LANES
  for (int v = 0; v < V; ++v) {
    if constexpr (sizeof(T) > sizeof(float)) {
      outside.items[v] = static_cast<T>(beyond);
    } else {
      outside.items[v] = from_float<T>(beyond);
    }
  }
  const Pack<T, V> pack = read_where(reinterpret_cast<const Pack<T, V>*>(at), test, outside);
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
}

#ifdef __CUDACC__

// No kernel writes what it reads, but for load_before. Told so, the compiler loads ahead of earlier
// stores.
template <class P>
KW_FN P read_only(const P* at) {
#ifdef __CUDA_ARCH__
  P pack;
  if constexpr (sizeof(P) == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else if constexpr (sizeof(P) == 8) {
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else if constexpr (sizeof(P) == 4) {
    const unsigned bits = __ldg(reinterpret_cast<const unsigned*>(at));
    __builtin_memcpy(&pack, &bits, sizeof bits);
  } else {
    pack = *at;
  }
  return pack;
#else
  return *at;
#endif
}

template <int V, class T>
KW_FN Vec<V> load_row(const T* at) {
  const Pack<T, V> pack = read_only(reinterpret_cast<const Pack<T, V>*>(at));
  Vec<V> out;
  KW_LANES
  for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
  return out;
}

// As load_row, for data that the kernel itself writes afterwards, in the very same places. A cache
// for what is never written could still have it when the next kernel reads it.
template <int V, class T>
KW_FN Vec<V> load_before(const T* at) {
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

// One instruction: the compiler takes an assignment apart where it does not see the alignment.
template <class P>
KW_FN void write_pack(P* at, const P& pack) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(P) == 16) {
    uint4 bits;
    __builtin_memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<uint4*>(at), bits);
  } else if constexpr (sizeof(P) == 8) {
    uint2 bits;
    __builtin_memcpy(&bits, &pack, sizeof bits);
    __stwb(reinterpret_cast<uint2*>(at), bits);
  } else {
    *at = pack;
  }
#else
  *at = pack;
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
    write_pack(reinterpret_cast<Pack<T, V>*>(at), pack);
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

// Of each lane, the element is read before it is written.
template <int V, class T>
KW_FN Row<T> load_before(const T* at) {
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
