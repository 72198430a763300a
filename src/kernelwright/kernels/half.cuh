// float16 and bfloat16 in memory: conversions to and from float32, rounding to nearest even.
#pragma once

#include "storage.cuh"

namespace kw {

struct half_t {
  uint16_t bits;
};

struct bfloat16_t {
  uint16_t bits;
};

KW_FN float to_float(bfloat16_t x) {
  return detail::from_bits(uint32_t{x.bits} << 16);
}

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

template <>
KW_FN bfloat16_t from_float<bfloat16_t>(float x) {
#if __CUDA_ARCH__ >= 800
  bfloat16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const uint32_t bits = detail::to_bits(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x == x ? rounded : 0x7fc0)};
#endif
}

template <>
KW_FN half_t from_float<half_t>(float x) {
#ifdef __CUDA_ARCH__
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const uint32_t sign_part = detail::to_bits(x) >> 16 & 0x8000;
  const float magnitude = ::fabsf(x);
  // Adding a power of two whose last bit is half's last bit rounds to nearest even in one step.
  const uint32_t exponent = detail::to_bits(magnitude) & 0x7f800000;
  const uint32_t smallest = 113u << 23;  // half's smallest normal exponent
  const float magic = detail::from_bits((exponent > smallest ? exponent : smallest) + (13u << 23));
  const float rounded = (magnitude + magic) - magic;
  const bool subnormal = rounded < 0x1p-14f;
  const uint32_t normal_bits = (detail::to_bits(rounded) - (112u << 23)) >> 13;
  const uint32_t small_bits = static_cast<uint32_t>(static_cast<int32_t>(rounded * 0x1p24f));
  uint32_t bits = subnormal ? small_bits : normal_bits;
  bits = magnitude >= 65520.0f ? 0x7c00 : bits;
  bits = x == x ? bits : 0x7e00;
  return {static_cast<uint16_t>(sign_part | bits)};
#endif
}

}  // namespace kw
