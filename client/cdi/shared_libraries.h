// Finds the shared libraries of a program, to tell whether it can run in a container that lacks the host's
// packages. Used by pool-cdi; starts the dynamic linker, one thread.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "common/result.h"

namespace gpupool::cdi {

// Returns the libraries below `folder` that the program loads; those of the C and C++ run time are left out,
// because every image with a CUDA program has them. ErrorCode::unavailable: the program needs other
// libraries, which the message names, or the dynamic linker cannot load it.
Result<std::vector<std::filesystem::path>> bundled_libraries(const std::filesystem::path& program,
                                                             const std::filesystem::path& folder);

}  // namespace gpupool::cdi
