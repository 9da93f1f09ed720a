// Finds the device code in host object files with embedded fat binaries, and in archives of them; for the
// linker (cuLinkAddData). Any thread.
#pragma once
#include <vector>

#include "protocol/images/fatbin.h"

namespace gpupool::softgpu {

// Returns the fat binary containers in order; none if the file is of another kind or has no device code. They
// point into the input, which may be hostile.
std::vector<cuda::ByteSpan> fat_binaries_of(cuda::ByteSpan object_or_archive);
bool is_archive(cuda::ByteSpan bytes);

}  // namespace gpupool::softgpu
