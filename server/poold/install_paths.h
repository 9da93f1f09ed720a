// Finds the parts of an installation from the path of the running program (PREFIX/bin/poold). poold uses it
// at its start; ErrorCode::unavailable: a file is missing.
#pragma once
#include <string>

#include "common/result.h"

namespace gpupool::server {

// "softgpu": PREFIX/lib/softgpu/libcuda.so.1; "nvidia": libcuda.so.1 as the dynamic linker finds it;
// otherwise a path. ErrorCode::invalid: neither.
Result<std::string> device_library_path(const std::string& device);
Result<std::string> worker_program_path();

}  // namespace gpupool::server
