// What every kernel needs around its launch: the right device, and its turn.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

// The last few values that were made from a key; a thread has its own. A value is found by all that
// it was made from, so it cannot be out of date.
template <class Key, class Value, int kMost = 32>
class Recent {
 public:
  // The value of a key, made if it is not there; false if it cannot be made.
  template <class Make>
  bool find(const Key& key, Value& value, const Make& make) {
    for (int i = 0; i < count_; ++i) {
      if (keys_[i] == key) {
        value = values_[i];
        return true;
      }
    }
    if (!make(key, value)) return false;
    keys_[next_] = key;
    values_[next_] = value;
    next_ = (next_ + 1) % kMost;
    count_ = count_ < kMost ? count_ + 1 : kMost;
    return true;
  }

 private:
  Key keys_[kMost] = {};
  Value values_[kMost] = {};
  int count_ = 0;
  int next_ = 0;
};

// Lets a kernel have so much shared memory; a thread asks for it once for each kernel and device.
inline cudaError_t allow_shared(const void* kernel, int bytes) {
  struct Key {
    const void* kernel;
    int device;
    bool operator==(const Key& other) const {
      return kernel == other.kernel && device == other.device;
    }
  };
  thread_local Recent<Key, cudaError_t> asked;
  Key key{kernel, 0};
  cudaGetDevice(&key.device);
  cudaError_t error = cudaSuccess;
  asked.find(key, error, [&](const Key&, cudaError_t& found) {
    found = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return found == cudaSuccess;
  });
  return error;
}

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
