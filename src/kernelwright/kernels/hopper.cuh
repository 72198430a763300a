// Hopper's own instructions under names: barriers in shared memory that count bytes, bulk tensor
// copies into one or more blocks of a cluster, and matrix products of a warpgroup (four warps).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KW_HOPPER 1
#endif

namespace kw::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// ---- mbarriers: a phase ends when all arrivals and all announced bytes have come ---------------

struct Barrier {
  uint64_t state;
};

__device__ __forceinline__ void init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive_expecting(Barrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// Arrives at the barrier in the same place of another block of the cluster. Scope `cluster` would
// put a full memory fence in front, and nothing that was written here is handed over.
__device__ __forceinline__ void arrive_at(Barrier& barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
}

__device__ __forceinline__ void wait(Barrier& barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(phase)
      : "memory");
}

// ---- the block's named barriers: kThreads threads wait, or announce that they were there --------

template <int kThreads>
__device__ __forceinline__ void sync_threads(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

template <int kThreads>
__device__ __forceinline__ void arrive_threads(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// ---- clusters ----------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// The compiler may not merge two of these, and so keeps nothing that follows from them alive from
// one part of a kernel to the next. (%laneid takes longer to read: 1 to 3% of a convolution whose
// epilogue stores every place.)
__device__ __forceinline__ int lane() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return static_cast<int>(thread % 32);
}

// The same out of a register that the thread keeps, where a special one would be waited for again
// and again. (The moments of a transposed convolution: 144 us for 169. But a register less makes
// the norm of rows take 139 us for 130, so it is not kept everywhere.)
__device__ __forceinline__ int kept_lane() {
  uint32_t index = threadIdx.x % 32;
  asm volatile("" : "+r"(index));
  return static_cast<int>(index);
}

__device__ __forceinline__ int block_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return static_cast<int>(index);
}

__device__ __forceinline__ int block_count() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(count));
  return static_cast<int>(count);
}

__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}

// A word of shared memory in another block of the cluster, at the place of this one here.
__device__ __forceinline__ uint32_t read_from(const uint32_t& word, int block) {
  uint32_t x;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [remote];\n"
      "}\n"
      : "=r"(x)
      : "r"(shared_address(&word)), "r"(block)
      : "memory");
  return x;
}

// ---- bulk tensor copies ------------------------------------------------------------------------

using EncodeMap = decltype(&cuTensorMapEncodeTiled);

// Makes a tensor map; a function of the driver, which is asked for it.
inline EncodeMap encode_map() {
  static const EncodeMap found = [] {
    void* at = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<EncodeMap>(at);
  }();
  return found;
}

// What the L2 cache is told of a copy: that the data may go first when room is needed, or nothing.
__device__ __forceinline__ uint64_t cache_policy(bool goes_first) {
  uint64_t policy;
  if (goes_first) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  }
  return policy;
}

// Where a box starts in a tensor of four axes, the innermost first.
struct Box {
  int at[4];
};

// A box of a tensor into shared memory, here or in every block of the cluster; the barrier in the
// same place of each of them counts the bytes.
template <int kCluster>
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier& barrier,
                                         const Box& box, uint64_t policy) {
  const auto& at = box.at;
  if constexpr (kCluster == 1) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(&barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(
            shared_address(to)),
        "l"(map), "r"(shared_address(&barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "h"(static_cast<uint16_t>((1 << kCluster) - 1)), "l"(policy)
        : "memory");
  }
}

// Brings a run of bytes, a multiple of 16, into the L2 cache.
__device__ __forceinline__ void prefetch_bytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Orders ordinary writes to global memory before reads of them by the copy engine, and back.
__device__ __forceinline__ void fence_copy_engine() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- registers ---------------------------------------------------------------------------------

template <int kCount>
__device__ __forceinline__ void give_registers() {
#ifdef KW_HOPPER
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

template <int kCount>
__device__ __forceinline__ void take_registers() {
#ifdef KW_HOPPER
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- matrix products ---------------------------------------------------------------------------

// Which elements of a matrix are neighbours in memory: those along the depth of a product, or those
// along the rows (of the right operand: the columns of the product).
enum class Major { kDepth, kRow };

// Boxes of 64 x 64 elements of two bytes in shared memory, one after the other along the rows, as
// the copy engine swizzles them: lines of 128 bytes in groups of eight. kDepth: a line is a row,
// and the groups follow one another through all boxes. kRow: a line is 64 rows at one depth; the
// groups of a box are further depths, and the next rows are a box further on.
template <Major kMajor>
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kBoxStride = uint64_t{kMajor == Major::kDepth ? 1 : 8192 / 16} << 16;
  return kSwizzle128 | kGroupStride | kBoxStride | (shared_address(tile) & 0x3ffff) >> 4;
}

// How far the next depth step of 16 elements is, in a descriptor.
template <Major kMajor>
inline constexpr uint64_t kDepthStep = (kMajor == Major::kDepth ? 32 : 2048) / 16;

__device__ __forceinline__ void begin_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void commit_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wait_products() {
#ifdef KW_HOPPER
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

// The compiler does not know that a product is still writing its accumulators: nothing may move
// across this.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

enum class Element { kFloat16, kBfloat16 };

// d += a * b over one depth step of 16 elements, 64 rows of a times kColumns rows of b; `add` 0
// starts from zero. Thread t of the warpgroup holds, in d[4 * j + 2 * i + c], row
// 16 * (t / 32) + t % 32 / 4 + 8 * i and column 8 * j + 2 * (t % 4) + c.
template <Element kElement, int kColumns, Major kLeft, Major kRight>
struct Product;

// clang-format off
#define KW_FIVE(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, "
#define KW_TEN(t) KW_FIVE(t) "%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define KW_TO_30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " KW_TEN(1) KW_TEN(2)
#define KW_TO_60 KW_TO_30 KW_TEN(3) KW_TEN(4) KW_TEN(5)
#define KW_TO_90 KW_TO_60 KW_TEN(6) KW_TEN(7) KW_TEN(8)
#define KW_TO_120 KW_TO_90 KW_TEN(9) KW_TEN(10) KW_TEN(11)
#define KW_IN_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KW_IN_8(i) KW_IN_4(i), KW_IN_4(i + 4)
#define KW_IN_32(i) KW_IN_8(i), KW_IN_8(i + 8), KW_IN_8(i + 16), KW_IN_8(i + 24)
// clang-format on

#define KW_PRODUCT(element, columns, types, outputs, a_at, b_at, add_at, left_at, right_at, ...) \
  template <Major kLeft, Major kRight>                                                           \
  struct Product<Element::element, columns, kLeft, kRight> {                                     \
    static __device__ __forceinline__ void run(float (&d)[columns / 2], uint64_t a, uint64_t b,  \
                                               int add) {                                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                    \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types " {" outputs    \
                   "}, " a_at ", " b_at ", p, 1, 1, " left_at ", " right_at ";\n}\n"             \
                   : __VA_ARGS__                                                                 \
                   : "l"(a), "l"(b), "r"(add), "n"(int{kLeft == Major::kRow}),                   \
                     "n"(int{kRight == Major::kRow}));                                           \
    }                                                                                            \
  };

#ifdef KW_HOPPER
#define KW_PRODUCTS(element, types)                                                             \
  KW_PRODUCT(element, 64, types, KW_TO_30 "%30, %31", "%32", "%33", "%34", "%35", "%36",        \
             KW_IN_32(0))                                                                       \
  KW_PRODUCT(element, 128, types, KW_TO_60 "%60, %61, %62, %63", "%64", "%65", "%66", "%67",    \
             "%68", KW_IN_32(0), KW_IN_32(32))                                                  \
  KW_PRODUCT(element, 192, types, KW_TO_90 "%90, %91, %92, %93, %94, %95", "%96", "%97", "%98", \
             "%99", "%100", KW_IN_32(0), KW_IN_32(32), KW_IN_32(64))                            \
  KW_PRODUCT(element, 256, types, KW_TO_120 "%120, %121, %122, %123, %124, %125, %126, %127",   \
             "%128", "%129", "%130", "%131", "%132", KW_IN_32(0), KW_IN_32(32), KW_IN_32(64),   \
             KW_IN_32(96))

KW_PRODUCTS(kFloat16, "f16.f16")
KW_PRODUCTS(kBfloat16, "bf16.bf16")
#endif

// The same with the 64 rows of a in registers, float16: a[2 * h + i] are the thread's two
// neighbours of depth, from 8 * h + 2 * (t % 4) on, in the row that d has at i. They must stay as
// they are until the product is done.
template <int kColumns>
struct RegisterProduct;

#define KW_REGISTER_PRODUCT(columns, shape, outputs, a_at, b_at, add_at, ...)                    \
  template <>                                                                                    \
  struct RegisterProduct<columns> {                                                              \
    static __device__ __forceinline__ void run(float (&d)[columns / 2], const uint32_t (&a)[4],  \
                                               uint64_t b, int add) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                    \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned." shape "k16.f32.f16.f16 {" outputs "}, {" a_at \
                   "}, " b_at ", p, 1, 1, 0;\n}\n"                                               \
                   : __VA_ARGS__                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }                                                                                            \
  };

#ifdef KW_HOPPER
KW_REGISTER_PRODUCT(64, "m64n64", KW_TO_30 "%30, %31", "%32, %33, %34, %35", "%36", "%37",
                    KW_IN_32(0))
KW_REGISTER_PRODUCT(128, "m64n128", KW_TO_60 "%60, %61, %62, %63", "%64, %65, %66, %67", "%68",
                    "%69", KW_IN_32(0), KW_IN_32(32))
#endif

}  // namespace kw::hopper
