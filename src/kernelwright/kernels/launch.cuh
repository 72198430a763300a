// What every kernel needs around its launch: the right device, and its turn.
#pragma once

#include <cuda_runtime.h>

namespace kw {

// Makes a device current for one launch.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    cudaGetDevice(&previous_);
    if (previous_ != device_) cudaSetDevice(device_);
  }
  ~DeviceGuard() {
    if (previous_ != device_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

// On Hopper a kernel's blocks may take their places while the last ones of the kernel before are
// still at work, which hides the time of the launch. So every kernel calls this before it touches
// memory: it returns when the kernel before is done, and lets the one after come in.
__device__ __forceinline__ void await_turn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// For a kernel that needs nothing of the one before it, and writes nothing that it reads: it lets
// the next one come in at once and awaits its turn only in the end, so that whoever waits for it
// has waited for both. What came before the two is done when it begins: the one before has called
// await_turn.
__device__ __forceinline__ void let_in() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

struct Grid {
  unsigned blocks;
  int threads;
  cudaStream_t stream;
  int shared_bytes = 0;
  unsigned cluster = 1;
};

template <class... Parameters, class... Given>
cudaError_t launch(void (*kernel)(Parameters...), const Grid& grid, const Given&... given) {
  static const int major = [] {  // of the device that the kernels were compiled for
    int device = 0;
    int found = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found, cudaDevAttrComputeCapabilityMajor, device);
    return found;
  }();
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {grid.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks);
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = grid.stream;
  config.attrs = attributes;
  config.numAttrs = major < 9 ? 0 : grid.cluster == 1 ? 1 : 2;
  return cudaLaunchKernelEx(&config, kernel, given...);
}

}  // namespace kw
