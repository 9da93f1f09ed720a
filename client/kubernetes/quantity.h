// Parses quantities of Kubernetes: "8Gi", "500m", "2e3". Pure; any thread.
#pragma once
#include <cstdint>
#include <string>

#include "common/result.h"

namespace gpupool::kubernetes {

// Returns thousandths, rounded up as Kubernetes does, of a quantity that is not negative. ErrorCode::invalid:
// not a quantity, or more than 2^63 thousandths.
Result<uint64_t> parse_milli(const std::string& text);

}  // namespace gpupool::kubernetes
