// Generates docs/softgpu-rules.md from the table of softgpu's rules.
#pragma once
#include <string>

namespace gpupool::testing {

std::string rules_page();

}  // namespace gpupool::testing
