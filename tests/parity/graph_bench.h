// Common setup of the parts about graph nodes: words on the device, a kernel that adds to them, a stream.
#pragma once
#include "tests/parity/show.h"

namespace parity {

constexpr unsigned kCount = 64;

struct Bench {
  Bench() {
    cuCtxGetCurrent(&context);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuModuleLoadData(&module, kernels_ptx);
    cuModuleGetFunction(&add, module, "add");
    cuMemAlloc(&words, 4096);
    cuMemsetD8(words, 0, 4096);
    cuCtxSynchronize();
    kernel.func = add;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.blockDimX = kCount;
    kernel.kernelParams = parameters;
  }
  ~Bench() {
    cuMemFree(words);
    cuModuleUnload(module);
    cuStreamDestroy(stream);
  }
  unsigned word(unsigned index) const {
    unsigned value = 0;
    cuMemcpyDtoH(&value, words + 4 * index, sizeof value);
    return value;
  }
  void run(const char* what, CUgraphExec exec) const {
    SHOW(cuGraphLaunch(exec, stream));
    SHOW(cuStreamSynchronize(stream));
    std::printf("%s: %u %u %u\n", what, word(0), word(1), word(kCount - 1));
  }

  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr words = 0;
  unsigned value = 3, count = kCount;
  void* parameters[3] = {&words, &value, &count};
  CUDA_KERNEL_NODE_PARAMS kernel{};
};

inline CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr to, unsigned value, size_t width) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = to, fill.value = value, fill.elementSize = 4, fill.width = width, fill.height = 1;
  return fill;
}

inline CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from, copy.dstDevice = to, copy.WidthInBytes = bytes, copy.Height = copy.Depth = 1;
  return copy;
}

}  // namespace parity
