// How much device memory loading an image takes, as far as the image says it: a cubin's code, variables and constants; of
// PTX the variables and constants, since the size of its code is known only to who compiles it. The bytes may be hostile;
// sums stop at UINT64_MAX. Pure functions, any thread.
#pragma once
#include "protocol/cuda/fatbin.h"

namespace gpupool::cuda {

// Of one unpacked entry. 0 also for what is no such code: who loads it says so.
uint64_t device_bytes(CodeKind kind, ByteSpan code);

// Of what a device of this compute capability would load, be it the cubin or the PTX: the larger of both.
uint64_t device_bytes(const Image& image, int major, int minor);

}  // namespace gpupool::cuda
