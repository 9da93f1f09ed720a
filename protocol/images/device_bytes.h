// Estimates how much device memory loading an image takes, for the worker's accounting: of a cubin, code,
// variables and constants; of PTX, variables and constants, and the text of its functions in place of their
// code. (A compiler makes some 16 bytes of code from a line of 30 to 40 characters, and more from a few
// lines.) The bytes are untrusted; sums saturate at UINT64_MAX. Pure functions, any thread.
#pragma once
#include "protocol/images/fatbin.h"

namespace gpupool::cuda {

// Bytes for one unpacked entry. Returns 0 for bytes that are not code: loading them reports the error.
uint64_t device_bytes(CodeKind kind, ByteSpan code);

struct DeviceUse {
  uint64_t bytes = 0;
  bool launches_kernels = false;  // the code names functions of the device runtime that launch kernels
};
// Use by the code that a device of this compute capability would load: the larger of cubin and PTX, since it
// may load either.
DeviceUse device_use(const Image& image, int major, int minor);
inline uint64_t device_bytes(const Image& image, int major, int minor) {
  return device_use(image, major, minor).bytes;
}

}  // namespace gpupool::cuda
