// The CUDA version that a driver library reports (cuDriverGetVersion), and the setting for it. Pure
// functions, any thread.
#pragma once

#include <optional>
#include <string_view>

#include "protocol/driver/cuda_header.h"

namespace gpupool::cuda {

// The newest version that the libraries support in full: they have every function of its cuda.h
// (docs/coverage.md).
constexpr int kNewestSupportedVersion = CUDA_VERSION;

constexpr int kOldestDriverVersion = 11070;

// Parses "13.4" to 13040. nullopt if the text is not a version from kOldestDriverVersion to the newest of
// symbols.def.
std::optional<int> parse_driver_version(std::string_view text);

// For messages about a wrong setting: "a CUDA version from 11.7 to 13.5".
const char* driver_version_wanted();

}  // namespace gpupool::cuda
