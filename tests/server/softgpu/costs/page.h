// Generates docs/softgpu-costs.md from the table of softgpu's costs.
#pragma once
#include <string>

namespace gpupool::testing {

std::string costs_page();

}  // namespace gpupool::testing
