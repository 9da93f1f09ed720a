// docs/softgpu-costs.md, made of the table of softgpu's costs.
#pragma once
#include <string>

namespace gpupool::testing {

std::string costs_page();

}  // namespace gpupool::testing
