// The float32 scalar functions of the expression IR, one definition for device and host.
//
// Each follows the torch function of its name, special values included: NaN in, NaN out (but for
// sign, where torch says 0), and infinities where eager puts them. Truth values are 1.0f and 0.0f.
//
// On the device (sm_80 and later) exp, log and their like are CUDA's accurate functions, and those
// whose results stay bounded are made of its approximate powers of two and reciprocals, two ulp
// each: a convolution's epilogue takes as long as it has instructions, and the error of
// exp(x), |x| 6e-8 relative, is lost where exp(x) is small beside 1 (tests/cuda/test_scalar.py). On
// the host they are the branch-free polynomials below, so that GCC vectorises a plain loop over any
// of them (all but pow, sin and cos) under -O3 -fno-math-errno -fno-trapping-math. Never
// -ffast-math: it breaks NaN, infinities and the argument reductions. The polynomials are minimax
// fits made by tests/cpu/scalar_fit.py; the ulp bounds of all functions are the table in
// tests/cpu/test_scalar.py. Nothing relies on a fused multiply-add: products that must be exact
// have few enough bits.
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KW_FN __host__ __device__ __forceinline__
#else
#define KW_FN inline __attribute__((always_inline))
#endif

namespace kw {
namespace detail {

inline constexpr float kInf = __builtin_huge_valf();
inline constexpr float kLog2e = 1.44269504f;
// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
inline constexpr float kRound = 12582912.0f;
// ln 2 = kLn2Hi + kLn2Lo; kLn2Hi has 9 bits, so its product with an exponent is exact.
inline constexpr float kLn2Hi = 0.693359375f;
inline constexpr float kLn2Lo = -2.12194440e-4f;

KW_FN uint32_t to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

KW_FN float from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// a / b, given the reciprocal of b. What is left of a product with it corrects it (Markstein),
// unless it is an infinity or b is one.
KW_FN float corrected(float a, float b, float inverse) {
  const float near = a * inverse;
  const float right = ::fmaf(::fmaf(-b, near, a), inverse, near);
  return right == right ? right : near;
}

// 2^n for n in [-126, 127].
KW_FN float pow2(int32_t n) {
  return from_bits(static_cast<uint32_t>(n + 127) << 23);
}

KW_FN float polynomial(float, float c) {
  return c;
}
KW_FN float polynomial(float x, float c0, float c1) {
  return c1 * x + c0;
}

// c0 + c1 x + c2 x^2 + ...; on the host Horner's rule in x^2 over pairs, half as long a chain as in
// x. The device has other elements to go on with, and saves the square.
template <class... Rest>
KW_FN float polynomial(float x, float c0, float c1, Rest... rest) {
#ifdef __CUDA_ARCH__
  return polynomial(x, c1, rest...) * x + c0;
#else
  return polynomial(x, rest...) * (x * x) + (c1 * x + c0);
#endif
}

// The selects below compare bits as integers where they can: GCC turns the inverse of a float
// comparison, which must hold for NaN, into up to six instructions on AArch64.

KW_FN bool sign_bit(float x) {
  return static_cast<int32_t>(to_bits(x)) < 0;
}

// min(|x|, bound). A NaN becomes bound; the callers bring it back.
KW_FN float bounded_abs(float x, float bound) {
  const uint32_t bits = to_bits(x) & 0x7fffffff;
  return from_bits(bits < to_bits(bound) ? bits : to_bits(bound));
}

KW_FN float keep_nan(float x, float value) {
  return x == x ? value : x;
}

// x + low = n ln 2 + high + tail, where high is exact and r = high + tail is at most ln(2) / 2.
struct Reduced {
  int32_t n;
  float high, tail, r;
};

KW_FN Reduced reduce(float x, float low = 0.0f) {
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float high = x - n * kLn2Hi;
  const float tail = low - n * kLn2Lo;
  return {static_cast<int32_t>(to_bits(shifted) - to_bits(kRound)), high, tail, high + tail};
}

// exp on [-ln(2)/2, ln(2)/2]; relative error of the fit 3.1e-9.
KW_FN float exp_reduced(const Reduced& a) {
  const float p =
      polynomial(a.r, 0.49999994f, 0.16666521f, 0.041668262f, 0.008368673f, 0.0013820995f);
  return (a.high + (p * (a.r * a.r) + a.tail)) + 1.0f;
}

// exp(x + low) for x in [-105, 43]. The power of two is applied in two steps so that a result below
// FLT_MIN keeps its bits until the last step; for n <= 63 that one is a constant.
KW_FN float exp_within(float x, float low = 0.0f) {
  const Reduced a = reduce(x, low);
  return exp_reduced(a) * pow2(a.n + 64) * 0x1p-64f;
}

// exp(-|x|), 0 for NaN.
KW_FN float exp_minus_abs(float x) {
  return exp_within(-bounded_abs(x, 105.0f));
}

// X_of_number is X, but for NaN any value.
KW_FN float exp_of_number(float x) {
  const Reduced a = reduce(::copysignf(bounded_abs(x, 105.0f), x));
  const int32_t half = a.n >> 1;  // 2^n itself may exceed the range when the result does not
  return exp_reduced(a) * pow2(half) * pow2(a.n - half);
}

KW_FN float expm1_of_number(float x) {
  const Reduced a = reduce(::copysignf(bounded_abs(x, 89.0f), x));
  // Relative error of the fit 4.3e-10.
  const float p =
      polynomial(a.r, 0.5f, 0.16666666f, 0.041666493f, 0.008333546f, 0.0013932326f, 0.00019761676f);
  const float s = pow2((a.n > -125 ? a.n : -125) - 1);
  const float half = (a.high + (p * (a.r * a.r) + a.tail)) * s + (s - 0.5f);
  return ::copysignf(2.0f * half, x);
}

// 2^x for x from -190 to 63, within 2 ulp. On the device 0 in the place of a subnormal number.
KW_FN float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  // x = n + f; relative error of the fit of 2^f: 3.0e-9. It is a part of 2^64, so that the last
  // product is the only one that may be subnormal.
  const float shifted = x + kRound;
  const float f = x - (shifted - kRound);
  constexpr float k = 0x1p-64f;
  const float p = polynomial(f, k, 0.6931472f * k, 0.24022648f * k, 0.0555036f * k,
                             0.009618506f * k, 0.0013390812f * k, 0.00015326493f * k);
  return p * from_bits((to_bits(shifted) << 23) + (uint32_t{127 + 64} << 23));
#endif
}

#ifdef __CUDACC__
KW_FN float approximate_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
#endif
  return x;
}

// exp(x) where it is at most about 1, or what is made of it is bounded.
KW_FN float exp_below(float x) {
  return power_of_two(x * kLog2e);
}
#endif

// expm1 for x <= 0; for NaN any value.
KW_FN float expm1_below(float x) {
#ifdef __CUDA_ARCH__
  // Relative error of the fit on [-0.4, 0]: 3.0e-8.
  const float near =
      x + x * x * polynomial(x, 0.49999774f, 0.16661227f, 0.04125567f, 0.0070860106f);
  return x > -0.4f ? near : exp_below(x) - 1.0f;
#else
  return expm1_of_number(x);
#endif
}

KW_FN float sigmoid_of_number(float x) {
  const float e = exp_minus_abs(x);
  const float d = 1.0f + e;
  const float q = (sign_bit(x) ? e : 1.0f) / d;
  return q - q * (e - (d - 1.0f));  // the last factor is what d lost: half an ulp of the result
}

// log1p on [-1/3, 1/3] without its leading f; relative error of the fit 4.7e-9.
KW_FN float log1p_reduced_tail(float f) {
  const float p = polynomial(f, 0.33333215f, -0.24999802f, 0.20010446f, -0.16680339f, 0.1400527f,
                             -0.12185958f, 0.1398729f, -0.12885442f);
  return f * f * (f * p - 0.5f);
}

// log(2^e (1 + f)).
KW_FN float log_of(int32_t e, float f) {
  const float n = static_cast<float>(e);
  return n * kLn2Hi + (f + (log1p_reduced_tail(f) + n * kLn2Lo));
}

// x = 2^e m with m in [2/3, 4/3), x positive, finite and normal.
struct Split {
  int32_t e;
  float m;
};

KW_FN Split split(float x) {
  constexpr uint32_t kTwoThirds = 0x3f2aaaab;
  const uint32_t above = to_bits(x) - kTwoThirds;
  return {static_cast<int32_t>(above) >> 23, from_bits((above & 0x007fffff) + kTwoThirds)};
}

// As split, for subnormal x too.
KW_FN Split split_any(float x) {
  const bool subnormal = to_bits(x) < 0x00800000;
  const Split s = split(x * (subnormal ? 0x1p23f : 1.0f));
  return {s.e - (subnormal ? 23 : 0), s.m};
}

// value for positive finite x, else the logarithm's special values.
KW_FN float log_domain(float x, float value) {
  const uint32_t bits = to_bits(x);
  const float special = sign_bit(x) ? __builtin_nanf("") : x;
  const float outside = (bits << 1) == 0 ? -kInf : special;
  return bits - 1 < 0x7f7fffff ? value : outside;
}

// log1p for finite x > -1. The part of x that 1 + x loses is added back after scaling.
KW_FN float log1p_finite(float x) {
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  const Split s = split(u);
  // Beyond 2^126 nothing was lost, but the scale itself would overflow.
  return log_of(s.e, (s.m - 1.0f) + lost * pow2(-(s.e < 126 ? s.e : 126)));
}

// log(1 + exp(-|x|)). The exponential e is at most 1. On the device it is 2 atanh(s), s = e / (2 +
// e), with half as many terms (relative error of the fit 4.5e-9; that of the other one 7.5e-9).
KW_FN float log1p_exp_minus_abs(float x) {
#ifdef __CUDA_ARCH__
  const float e = exp_below(-::fabsf(x));
  const float s = e * approximate_reciprocal(2.0f + e);
  const float z = s * s;
  return s * (2.0f + z * polynomial(z, 0.6666642f, 0.40021437f, 0.28003025f, 0.28006783f));
#else
  const float e = exp_minus_abs(x);
  return e + e * polynomial(e - 0.5f, -0.18906978f, -0.2885271f, 0.13260876f, -0.06768809f,
                            0.036639813f, -0.020565214f, 0.011550705f, -0.0067752893f, 0.00530119f,
                            -0.0032008518f);
#endif
}

// a / b within 2 ulp for b from 1/4 to 2^126; beyond that it is 0, since so is the reciprocal.
// The device's exact division takes many times the instructions of an approximate reciprocal.
KW_FN float ratio(float a, float b) {
#ifdef __CUDA_ARCH__
  return a * approximate_reciprocal(b);
#else
  return a / b;
#endif
}

// a / (1 + b) for any b from 0 on: a quarter of both, since the reciprocal of 2^127 is subnormal.
KW_FN float over_one_plus(float a, float b) {
#ifdef __CUDA_ARCH__
  return ratio(0.25f * a, 0.25f + 0.25f * b);
#else
  return a / (1.0f + b);
#endif
}

// Phi(x), by the smaller of Phi(x) and Phi(-x): unlike 1 + erf, that stays accurate where x is
// negative. With t = |x|, on the device, which has reciprocals and powers of two at hand, it is
// exp(-t^2 / 2) r P(r), r = 1 / (1 + 0.33 t): as accurate as the formula with CUDA's erf
// (rms 1.2e-8 for normal x, 1.0e-8 with it), and half of its instructions. On the host, where a
// division takes as long as eight products, it is 2^(t P(t) - 1).
KW_FN float normal_share(float x) {
#ifdef __CUDA_ARCH__
  const float r = ratio(1.0f, 1.0f + 0.33f * ::fabsf(x));
  // Error in Phi of the fit: 6.1e-9 exp(-t^2 / 6).
  const float p = polynomial(r, 0.1327174f, 0.11867608f, 0.1835255f, -0.09354843f, 0.33528388f,
                             -0.22262646f, 0.045972038f);
  const float smaller = p * r * power_of_two(x * (x * -0.72134752f));
#else
  const float t = bounded_abs(x, 11.0f);  // where the power is 0
  // Error in Phi of the fit: 8.6e-10 exp(-t^2 / 6).
  const float p =
      polynomial(t, -1.1511042f, -0.45922256f, -0.05242787f, 0.0069113825f, 4.52259e-05f,
                 -0.00031101605f, 8.8864625e-05f, -1.3756724e-05f, 1.1894161e-06f, -4.4829903e-08f);
  const float smaller = power_of_two(t * p - 1.0f);
#endif
  return sign_bit(x) ? smaller : 1.0f - smaller;
}

// The device multiplies, as eager's kernels do there.
KW_FN float sixth(float x) {
#ifdef __CUDA_ARCH__
  return x * (1.0f / 6.0f);
#else
  return x / 6.0f;
#endif
}

}  // namespace detail

// a / b. The device's own division branches, so that nothing of the next element is done meanwhile.
KW_FN float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  const float size = ::fabsf(b);
  const float small = size < 0x1p-100f ? 0x1p100f : 1.0f;
  const float scale = size > 0x1p100f ? 0x1p-100f : small;
  const float scaled = b * scale;
  return detail::corrected(a, scaled, detail::approximate_reciprocal(scaled)) * scale;
#else
  return a / b;
#endif
}

// The same by a number that is neither large nor small, whose reciprocal is known.
KW_FN float quotient(float a, float b, [[maybe_unused]] float inverse) {
#ifdef __CUDA_ARCH__
  return detail::corrected(a, b, inverse);
#else
  return a / b;
#endif
}

// Arithmetic and rounding.

// clang-format off
KW_FN float abs(float x) { return ::fabsf(x); }
KW_FN float sign(float x) { return (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f); }
KW_FN float sqrt(float x) { return ::sqrtf(x); }
KW_FN float reciprocal(float x) { return quotient(1.0f, x); }
KW_FN float square(float x) { return x * x; }
KW_FN float floor(float x) { return ::floorf(x); }
KW_FN float ceil(float x) { return ::ceilf(x); }
KW_FN float round(float x) { return ::rintf(x); }
KW_FN float trunc(float x) { return ::truncf(x); }
KW_FN float sin(float x) { return ::sinf(x); }
KW_FN float cos(float x) { return ::cosf(x); }
KW_FN float pow(float x, float y) { return ::powf(x, y); }
// clang-format on

KW_FN float rsqrt(float x) {
#ifdef __CUDA_ARCH__
  return ::rsqrtf(x);
#else
  return 1.0f / ::sqrtf(x);
#endif
}

// Comparison and choice.

// clang-format off
KW_FN float lt(float a, float b) { return a < b ? 1.0f : 0.0f; }
KW_FN float le(float a, float b) { return a <= b ? 1.0f : 0.0f; }
KW_FN float gt(float a, float b) { return a > b ? 1.0f : 0.0f; }
KW_FN float ge(float a, float b) { return a >= b ? 1.0f : 0.0f; }
KW_FN float eq(float a, float b) { return a == b ? 1.0f : 0.0f; }
KW_FN float ne(float a, float b) { return a != b ? 1.0f : 0.0f; }
KW_FN float where(float c, float a, float b) { return c != 0.0f ? a : b; }
// clang-format on

KW_FN float finite_or_zero(float x) {
  return (detail::to_bits(x) << 1) == 0xff000000u ? 0.0f : x;
}

// fmaxf drops a NaN, so it is brought back: by PTX in the instruction; on AArch64 by a select,
// since fmaxf is one instruction; elsewhere by the comparison, of which x86 makes one for a
// constant b.
KW_FN float maximum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#elif defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fmaxf(a, b)));
#else
  return a < b || b != b ? b : a;
#endif
}

KW_FN float minimum(float a, float b) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#elif defined(__aarch64__)
  return detail::keep_nan(b, detail::keep_nan(a, ::fminf(a, b)));
#else
  return a > b || b != b ? b : a;
#endif
}

// clang-format off
KW_FN float clamp(float x, float low, float high) { return minimum(maximum(x, low), high); }
// clang-format on

// Exponentials and logarithms.

KW_FN float exp(float x) {
#ifdef __CUDA_ARCH__
  return ::expf(x);
#else
  return detail::keep_nan(x, detail::exp_of_number(x));
#endif
}

// exp where no argument that counts is above 0: exponentials below their largest one.
KW_FN float exp_below(float x) {
#ifdef __CUDA_ARCH__
  return detail::exp_below(x);
#else
  return exp(x);
#endif
}

KW_FN float expm1(float x) {
#ifdef __CUDA_ARCH__
  return ::expm1f(x);
#else
  return detail::keep_nan(x, detail::expm1_of_number(x));
#endif
}

KW_FN float log(float x) {
#ifdef __CUDA_ARCH__
  return ::logf(x);
#else
  const detail::Split s = detail::split_any(x);
  return detail::log_domain(x, detail::log_of(s.e, s.m - 1.0f));
#endif
}

KW_FN float log2(float x) {
#ifdef __CUDA_ARCH__
  return ::log2f(x);
#else
  const detail::Split s = detail::split_any(x);
  const float f = s.m - 1.0f;
  const float natural = f + detail::log1p_reduced_tail(f);
  return detail::log_domain(x, natural * detail::kLog2e + static_cast<float>(s.e));
#endif
}

KW_FN float log1p(float x) {
#ifdef __CUDA_ARCH__
  return ::log1pf(x);
#else
  // copysign keeps the sign of zero.
  return ::copysignf(detail::log_domain(1.0f + x, detail::log1p_finite(x)), x);
#endif
}

// Sigmoids.

KW_FN float sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return detail::over_one_plus(1.0f, detail::exp_below(-x));
#else
  return detail::keep_nan(x, detail::sigmoid_of_number(x));
#endif
}

KW_FN float log_sigmoid(float x) {
  const float result = (detail::sign_bit(x) ? x : 0.0f) - detail::log1p_exp_minus_abs(x);
  return detail::keep_nan(x, result);
}

KW_FN float tanh(float x) {
#ifdef __CUDA_ARCH__
  // 1 - 2 / (1 + exp(2 |x|)), which is 1 from 9 on by itself; relative error of the fit on
  // |x| < 0.5: 1.5e-8.
  const float a = ::fabsf(x);
  const float z = a * a;
  const float p = detail::polynomial(z, -0.33333144f, 0.13325872f, -0.053044982f, 0.01724041f);
  const float e = detail::power_of_two(a * (2.0f * detail::kLog2e));
  const float outer = 1.0f - 2.0f * detail::approximate_reciprocal(1.0f + e);
  return ::copysignf(a < 0.5f ? a + a * (z * p) : outer, x);
#else
  const float a = ::fabsf(x);
  // Relative error of the fit on |x| < 0.625: 4.5e-9.
  const float z = a * a;
  const float p =
      detail::polynomial(z, -0.3333328f, 0.13331406f, -0.053736515f, 0.020628167f, -0.005692296f);
  const float inner = a + a * z * p;
  const float e = detail::exp_within(2.0f * detail::bounded_abs(x, 10.0f));
  const float outer = 1.0f - 2.0f / (e + 1.0f);
  return ::copysignf(a > 0.625f ? outer : inner, x);
#endif
}

KW_FN float erf(float x) {
#ifdef __CUDA_ARCH__
  return ::erff(x);
#else
  const float a = ::fabsf(x);
  // Relative error of the fit on |x| < 0.925: 8.9e-10.
  const float p = detail::polynomial(a * a, 0.12837917f, -0.3761263f, 0.11283626f, -0.026855728f,
                                     0.0051923813f, -0.0008049305f, 7.993802e-05f);
  const float inner = a + a * p;
  // -log(erfc(a)) / a; error in erf of the fit on [0.925, 3.95]: 2.9e-9.
  const float b = detail::bounded_abs(x, 3.95f);  // where erf rounds to 1
  const float q = detail::polynomial(b, 1.1285092f, 0.6357363f, 0.10523766f, -0.022874158f,
                                     0.0032099397f, -0.00021336706f);
  const float outer = 1.0f - detail::exp_within(-b * q);
  return ::copysignf(a > 0.925f ? outer : inner, x);
#endif
}

// Activations.

// clang-format off
KW_FN float relu(float x) { return maximum(x, 0.0f); }
KW_FN float leaky_relu(float x, float slope) { return detail::sign_bit(x) ? x * slope : x; }
KW_FN float hardtanh(float x, float low, float high) { return clamp(x, low, high); }
KW_FN float relu6(float x) { return clamp(x, 0.0f, 6.0f); }
KW_FN float hardsigmoid(float x) { return detail::sixth(clamp(x + 3.0f, 0.0f, 6.0f)); }
KW_FN float softsign(float x) { return detail::over_one_plus(x, ::fabsf(x)); }
KW_FN float hardswish(float x) { return detail::sixth(x * clamp(x + 3.0f, 0.0f, 6.0f)); }
// clang-format on

KW_FN float elu(float x, float alpha, float scale, float input_scale) {
  const float inner = x * input_scale;
  const float below = input_scale > 0.0f ? detail::expm1_below(inner) : expm1(inner);
  return x < 0.0f ? below * (alpha * scale) : x * scale;
}

// log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)): no overflow, where eager has one between 88.7
// and a larger threshold.
KW_FN float softplus(float x, float beta, float threshold) {
  const float z = x * beta;
#ifdef __CUDA_ARCH__
  const float value = ::fmaxf(z, 0.0f) + detail::log1p_exp_minus_abs(z);
  if (beta == 1.0f && threshold >= 18.0f) return value;  // the logarithm is lost beside z there
#else
  const float value = (detail::sign_bit(z) ? 0.0f : z) + detail::log1p_exp_minus_abs(z);
#endif
  return z <= threshold ? value / beta : x;
}

KW_FN float silu(float x) {
#ifdef __CUDA_ARCH__
  return detail::over_one_plus(x, detail::exp_below(-x));
#else
  return x * detail::sigmoid_of_number(x);
#endif
}

// tanh(log(1 + exp(x))) = n / (n + d) with one exponential e: for negative x, e = exp(x) and
// n = e^2 + 2 e, d = 2; otherwise e = exp(-x), which cannot overflow, and n = 1 + 2 e, d = 2 e^2.
// The device uses the first form everywhere: from 20 on it is 1, and e^2 is far from overflow.
KW_FN float mish(float x) {
#ifdef __CUDA_ARCH__
  const float power = detail::exp_below(::fminf(x, 20.0f));
  const float m = power * (power + 2.0f);
  return x * detail::ratio(m, m + 2.0f);
#else
  const float e = detail::exp_minus_abs(x);
  const bool negative = detail::sign_bit(x);
  const float n = negative ? e * (e + 2.0f) : 1.0f + 2.0f * e;
  const float d = negative ? 2.0f : 2.0f * e * e;
  return x * detail::ratio(n, n + d);
#endif
}

// The derivative, tanh(s) + x sigmoid(x) (1 - tanh(s)^2) for s = log(1 + exp(x)), by the same
// exponential: n / (n + d) + 4 x m (1 + e) / (n + d)^2, m = e for negative x and e^2 otherwise; for
// the device's form m = e. NaN at infinities, as inf * 0 is in eager's.
KW_FN float mish_slope(float x) {
#ifdef __CUDA_ARCH__
  const float bounded = ::fminf(x, 20.0f);
  const float power = detail::exp_below(bounded);
  const float m = power * (power + 2.0f);
  const float inverse = detail::approximate_reciprocal(m + 2.0f);
  const float rest = bounded * (power * inverse) * ((1.0f + power) * inverse);
  return m * inverse + (4.0f * rest + (x - x));
#else
  const float e = detail::exp_minus_abs(x);
  const bool negative = detail::sign_bit(x);
  const float n = negative ? e * (e + 2.0f) : 1.0f + 2.0f * e;
  const float d = negative ? 2.0f : 2.0f * e * e;
  const float m = negative ? e : e * e;
  const float sum = n + d;
  return n / sum + 4.0f * (x * m) * ((1.0f + e) / (sum * sum));
#endif
}

// x Phi(x).
KW_FN float gelu(float x) {
  return x * detail::normal_share(x);
}

// Phi(x) + x phi(x), the derivative; NaN at infinities, as inf * 0 is in eager's.
KW_FN float gelu_slope(float x) {
#ifdef __CUDA_ARCH__
  const float density = 0.3989423f * detail::power_of_two(x * (x * -0.72134752f));
  return detail::normal_share(x) + x * density;
#else
  const float t = ::copysignf(detail::bounded_abs(x, 11.0f), x);
  const float density = 0.3989423f * detail::power_of_two(t * (t * -0.72134752f));
  return detail::normal_share(x) + (t * density + (x - x));
#endif
}

// 0.5 (1 + tanh(u)) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
KW_FN float gelu_tanh(float x) {
  const float twice_u = x * (1.59576912f + 0.0713548163f * (x * x));
  return x * sigmoid(twice_u);
}

}  // namespace kw
