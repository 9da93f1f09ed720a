// For tests of NVIDIA's libraries, whose kernels are machine code that softgpu cannot execute: with
// SOFTGPU_SKIP_MACHINE_CODE=1 such code is loaded (in preference to PTX, as on
// a GPU) and its kernels can be launched, but do nothing.
#pragma once
#include <string>

#include "protocol/cuda/fatbin.h"

namespace gpupool::softgpu {

// Is it so? From the environment, once.
bool skips_machine_code();

// PTX with the cubin's kernels, of the same parameters and without bodies, and its variables, all zero. Empty: not a cubin.
// The bytes may be hostile.
std::string without_machine_code(cuda::ByteSpan cubin, uint32_t arch);

}  // namespace gpupool::softgpu
