// Where the parts of an installation are, seen from the running program (PREFIX/bin/poold).
#pragma once
#include <string>

#include "protocol/wire/result.h"

namespace gpupool::server {

// "softgpu": PREFIX/lib/softgpu/libcuda.so.1; "nvidia": libcuda.so.1 as the dynamic linker finds it; else a
// path.
Result<std::string> device_library_path(const std::string& device);
Result<std::string> worker_program_path();

}  // namespace gpupool::server
