// Sizes and rates as people write them: "8GiB", "1.5GB", "4096", "1GB/s".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/wire/result.h"

namespace gpupool::server {

// Exact: what is no whole number of bytes, or does not fit in 64 bits, is ErrorCode::invalid, as is anything else.
Result<uint64_t> parse_size(std::string_view text);
Result<uint64_t> parse_rate(std::string_view text);  // bytes per second
// The shortest of them that says exactly this: "8GiB", "1500MB", "4097".
std::string size_text(uint64_t bytes);

}  // namespace gpupool::server
