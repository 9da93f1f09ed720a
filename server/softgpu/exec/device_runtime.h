// CUDA's device runtime: the functions of NVIDIA's libcudadevrt that kernels call. Each is named
// softgpu_<CUDA name> and is called by generated code on the fiber or pool thread of the CUDA thread. Numbers
// passed by kernels are a cudaError_t, cudaDeviceAttr and so on, and may be invalid. Pointers are generic
// addresses; structs that the C function takes by value are passed by address. Errors are returned and kept
// in ThreadContext::runtime_error.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

class ChildLaunches;
class KernelServices;

// The parts of a grid that the device runtime uses.
struct DeviceRuntime {
  ChildLaunches* launches;  // null: the grid is nested too deeply to launch
  const KernelServices* services;
};
DeviceRuntime device_runtime_of(const ThreadContext* thread);

struct Dim3 {
  uint32_t size[3];
};
struct PitchedPointer {
  uint64_t address, pitch, width, height;
};
struct Extent {
  uint64_t width, height, depth;
};

extern "C" {
#define DEVICE_FUNCTION(result, name, arguments) result softgpu_##name arguments;
#include "server/softgpu/exec/device_runtime.def"
#undef DEVICE_FUNCTION
}

}  // namespace gpupool::softgpu
