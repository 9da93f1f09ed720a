// The device code in what a host's compiler makes: object files with fat binaries in them, and archives of such.
#pragma once
#include <vector>

#include "protocol/cuda/fatbin.h"

namespace gpupool::softgpu {

// Containers, in order; none: it is no such file, or has no device code. They point into the bytes, which may be hostile.
std::vector<cuda::ByteSpan> fat_binaries_of(cuda::ByteSpan object_or_archive);
bool is_archive(cuda::ByteSpan bytes);

}  // namespace gpupool::softgpu
