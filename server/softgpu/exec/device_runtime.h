// CUDA's device runtime: what kernels call of the functions that are NVIDIA's libcudadevrt elsewhere. Each is
// softgpu_<its CUDA name>; generated code calls them. A number that a kernel gives is a cudaError_t, cudaDeviceAttr and so on;
// pointers are generic addresses, and structs that the C function takes by value are passed by address.
#pragma once
#include <cstdint>

#include "server/softgpu/exec/abi.h"

namespace gpupool::softgpu {

class ChildLaunches;
class KernelServices;

// The part of a grid that its threads' calls go to.
struct DeviceRuntime {
  ChildLaunches* launches;          // null: the grid is nested too deep to launch
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
