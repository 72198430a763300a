// Every function of scalar.cuh in a loop over arrays: a host function kw_NAME for ctypes and, under
// nvcc, a kernel too. One line a function, so that a line of -fopt-info-vec names the function.
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
#define KERNEL(name, params, call)                              \
  extern "C" __global__ void kernel_##name params {             \
    const long i = blockIdx.x * long{blockDim.x} + threadIdx.x; \
    if (i < n) y[i] = kw::name call;                            \
  }
#else
#define KERNEL(name, params, call)
#endif

#define IN const float* __restrict
#define OUT float* __restrict y, long n
#define BOTH(name, params, call) HOST_LOOP(name, params, call) KERNEL(name, params, call)
#define UNARY(name) BOTH(name, (IN a, OUT), (a[i]))
#define BINARY(name) BOTH(name, (IN a, IN b, OUT), (a[i], b[i]))
#define TERNARY(name) BOTH(name, (IN a, IN b, IN c, OUT), (a[i], b[i], c[i]))
#define QUATERNARY(name) BOTH(name, (IN a, IN b, IN c, IN d, OUT), (a[i], b[i], c[i], d[i]))

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
UNARY(gelu)
UNARY(gelu_tanh)
// clang-format on
