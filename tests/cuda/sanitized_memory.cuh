// What the programs for compute-sanitizer share. They run every CUDA template and every main loop on
// small, awkward sizes; the values are checked elsewhere. What kernels read is filled; what they
// write is not, so that initcheck sees whoever reads it before.
#pragma once

#include "check_configs.cuh"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace sanitized {

using namespace kw::check;

// To be met on the paths for what cannot be split, rounded or padded.
inline const float kNaN = __builtin_nanf("");

// The program ends at the first failure.
inline void expect(cudaError_t error, const char* what) {
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);  // a fault stays: whatever comes after it fails too
}

// Device memory that knows its exact size, so that a step behind it is seen.
template <class T>
T* room(int64_t count) {
  void* at = nullptr;
  expect(cudaMalloc(&at, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(at);
}

template <class T>
T* copied(const std::vector<T>& host) {
  T* const at = room<T>(static_cast<int64_t>(host.size()));
  expect(cudaMemcpy(at, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return at;
}

// Numbers of both signs; every 997th is `odd`.
inline float* numbers(int64_t count, float odd = 0.5f) {
  std::vector<float> host(static_cast<size_t>(count));
  for (size_t i = 0; i < host.size(); ++i) {
    host[i] = i % 997 == 996 ? odd : static_cast<float>(std::rand() % 2001 - 1000) / 1000.0f;
  }
  return copied(host);
}

inline uint16_t* halves(int64_t count, uint16_t bits) {
  return copied(std::vector<uint16_t>(static_cast<size_t>(count), bits));
}

inline kw::half_t* ones(int64_t count) {
  return reinterpret_cast<kw::half_t*>(halves(count, 0x3c00));
}

}  // namespace sanitized
