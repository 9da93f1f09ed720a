// How much device memory loading an image takes, as far as the image says it: a cubin's code, variables and constants; of
// PTX the variables and constants, and as code the size of the functions' text. A compiler makes some 16 bytes of a line of 30 to 40, and may make more
// of a few. The bytes may be hostile; sums stop at UINT64_MAX. Pure functions, any thread.
#pragma once
#include "protocol/cuda/fatbin.h"

namespace gpupool::cuda {

// Of one unpacked entry. 0 also for what is no such code: who loads it says so.
uint64_t device_bytes(CodeKind kind, ByteSpan code);

struct DeviceUse {
  uint64_t bytes = 0;
  bool launches_kernels = false;  // the code names the device runtime's functions that launch kernels
};
// Of what a device of this compute capability would load, be it the cubin or the PTX: the larger of both.
DeviceUse device_use(const Image& image, int major, int minor);
inline uint64_t device_bytes(const Image& image, int major, int minor) { return device_use(image, major, minor).bytes; }

}  // namespace gpupool::cuda
