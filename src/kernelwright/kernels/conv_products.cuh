// Matrix products of a warpgroup for the widths that convolutions need beside those of hopper.cuh,
// and operands as a convolution lays them: rows of 16 bytes, no swizzle.
#pragma once

#include "hopper.cuh"
#include "scalar.cuh"

namespace kw::hopper {

// Whether there is a product of so many columns, here or in hopper.cuh.
KW_FN constexpr bool is_width(int columns) {
  if (columns <= 64) return columns % 8 == 0;
  return columns < 128 ? columns % 16 == 0 : columns % 64 == 0 && columns <= 256;
}

#ifdef KW_HOPPER
#define KW_NARROW_PRODUCTS(element, types)                                                         \
  KW_PRODUCT(element, 8, types, "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8", KW_IN_4(0))        \
  KW_PRODUCT(element, 16, types, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11",       \
             "%12", KW_IN_8(0))                                                                    \
  KW_PRODUCT(element, 24, types, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11", "%12", "%13", \
             "%14", "%15", "%16", KW_IN_8(0), KW_IN_4(8))                                          \
  KW_PRODUCT(element, 32, types,                                                                   \
             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15", "%16", "%17", \
             "%18", "%19", "%20", KW_IN_8(0), KW_IN_8(8))                                          \
  KW_PRODUCT(                                                                                      \
      element, 40, types,                                                                          \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19",  \
      "%20", "%21", "%22", "%23", "%24", KW_IN_8(0), KW_IN_8(8), KW_IN_4(16))                      \
  KW_PRODUCT(element, 48, types,                                                                   \
             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "    \
             "%18, %19, %20, %21, %22, %23",                                                       \
             "%24", "%25", "%26", "%27", "%28", KW_IN_8(0), KW_IN_8(8), KW_IN_8(16))               \
  KW_PRODUCT(element, 56, types,                                                                   \
             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "    \
             "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27",                                   \
             "%28", "%29", "%30", "%31", "%32", KW_IN_8(0), KW_IN_8(8), KW_IN_8(16), KW_IN_4(24))  \
  KW_PRODUCT(element, 80, types, KW_TO_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39",      \
             "%40", "%41", "%42", "%43", "%44", KW_IN_32(0), KW_IN_8(32))                          \
  KW_PRODUCT(                                                                                      \
      element, 96, types,                                                                          \
      KW_TO_30                                                                                     \
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47",  \
      "%48", "%49", "%50", "%51", "%52", KW_IN_32(0), KW_IN_8(32), KW_IN_8(40))                    \
  KW_PRODUCT(element, 112, types,                                                                  \
             KW_TO_30                                                                              \
             "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "    \
             "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55",                                   \
             "%56", "%57", "%58", "%59", "%60", KW_IN_32(0), KW_IN_8(32), KW_IN_8(40),             \
             KW_IN_8(48))

KW_NARROW_PRODUCTS(kFloat16, "f16.f16")
KW_NARROW_PRODUCTS(kBfloat16, "bf16.bf16")
#endif

// An operand whose rows have 16 bytes (eight of depth) in one place and the next 16 `deep` bytes
// further on. Eight rows lie one after the other, the next eight `down` bytes further on.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address, uint32_t deep,
                                                    uint32_t down) {
  return uint64_t{(address & 0x3ffff) >> 4 | (deep >> 4) << 16} | uint64_t{down >> 4} << 32;
}

}  // namespace kw::hopper
