// SOFTGPU_SKIP_MACHINE_CODE=1, for tests of NVIDIA's libraries, whose kernels are machine code that softgpu
// cannot execute: cubins are loaded, in preference to PTX as on a GPU, and their kernels can be launched but
// do nothing. Any thread.
#pragma once
#include <string>

#include "protocol/images/fatbin.h"

namespace gpupool::softgpu {

// True if SOFTGPU_SKIP_MACHINE_CODE=1. Reads the environment once.
bool skips_machine_code();

// Returns PTX with the cubin's kernels (same parameters, empty bodies) and its variables (all zero). Empty if
// this is not a cubin; it may be hostile.
std::string stub_ptx_of_cubin(cuda::ByteSpan cubin, uint32_t arch);

}  // namespace gpupool::softgpu
