// docs/softgpu-rules.md, made of the table of softgpu's rules.
#pragma once
#include <string>

namespace gpupool::testing {

std::string rules_page();

}  // namespace gpupool::testing
