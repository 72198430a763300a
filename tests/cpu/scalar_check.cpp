// Every function of scalar.cuh in a loop over arrays: a host function kw_NAME for ctypes and, under
// nvcc, a kernel and what launches it, device_NAME. One line a function, so that a line of
// -fopt-info-vec names the function.
#include "scalar.cuh"

#define HOST_LOOP(name, params, call)           \
  extern "C" void kw_##name params {            \
    for (long base = 0; base < n; base += 16) { \
      for (int v = 0; v < 16; ++v) {            \
        const long i = base + v;                \
        y[i] = kw::name call;                   \
      }                                         \
    }                                           \
  }

#ifdef __CUDACC__
#define KERNEL(name, params, call, given)                            \
  extern "C" __global__ void kernel_##name params {                  \
    const long i = blockIdx.x * long{blockDim.x} + threadIdx.x;      \
    if (i < n) y[i] = kw::name call;                                 \
  }                                                                  \
  extern "C" void device_##name params {                             \
    kernel_##name<<<static_cast<int>((n + 255) / 256), 256>>> given; \
  }
#else
#define KERNEL(name, params, call, given)
#endif

#define IN const float* __restrict
#define OUT float* __restrict y, long n
#define BOTH(name, params, call, given) \
  HOST_LOOP(name, params, call)         \
  KERNEL(name, params, call, given)
#define UNARY(name) BOTH(name, (IN a, OUT), (a[i]), (a, y, n))
#define BINARY(name) BOTH(name, (IN a, IN b, OUT), (a[i], b[i]), (a, b, y, n))
#define TERNARY(name) BOTH(name, (IN a, IN b, IN c, OUT), (a[i], b[i], c[i]), (a, b, c, y, n))
#define QUATERNARY(name) \
  BOTH(name, (IN a, IN b, IN c, IN d, OUT), (a[i], b[i], c[i], d[i]), (a, b, c, d, y, n))

// clang-format off
UNARY(abs)
UNARY(sign)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(square)
UNARY(floor)
UNARY(ceil)
UNARY(round)
UNARY(trunc)
UNARY(sin)
UNARY(cos)
BINARY(pow)

BINARY(lt)
BINARY(le)
BINARY(gt)
BINARY(ge)
BINARY(eq)
BINARY(ne)
TERNARY(where)
UNARY(finite_or_zero)
BINARY(maximum)
BINARY(minimum)
TERNARY(clamp)

UNARY(exp)
UNARY(exp_below)
UNARY(expm1)
UNARY(log)
UNARY(log2)
UNARY(log1p)

UNARY(sigmoid)
UNARY(log_sigmoid)
UNARY(tanh)
UNARY(erf)

UNARY(relu)
BINARY(leaky_relu)
TERNARY(hardtanh)
UNARY(relu6)
UNARY(hardsigmoid)
UNARY(hardswish)
UNARY(softsign)
QUATERNARY(elu)
TERNARY(softplus)
UNARY(silu)
UNARY(mish)
UNARY(mish_slope)
UNARY(gelu)
UNARY(gelu_slope)
UNARY(gelu_tanh)
// clang-format on
