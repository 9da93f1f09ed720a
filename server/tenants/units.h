// Sizes, rates and parts of GPUs as people write them: "8GiB", "1.5GB", "4096", "1GB/s", "12.5". For poold, pool-scheduler, pool-run and
// pool-admin.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/wire/result.h"

namespace gpupool::server {

// Exact: what is no whole number of bytes, or does not fit in 64 bits, is ErrorCode::invalid, as is anything else.
Result<uint64_t> parse_size(std::string_view text);
// A size that is 0 or at least 1 MiB. Less is ErrorCode::invalid: a number whose unit was forgotten.
Result<uint64_t> parse_memory(std::string_view text);
Result<uint64_t> parse_rate(std::string_view text);  // bytes per second
// The shortest of them that says exactly this: "8GiB", "1500MB", "4097".
std::string size_text(uint64_t bytes);

// Percent of a GPU with at most one digit behind the point, from 0.1 to 100; as thousandths.
Result<uint32_t> parse_compute(std::string_view text);
std::string percent_text(uint64_t milli);  // "25", "12.5"
// A number of GPUs up to 10^9, as thousandths of one.
Result<uint64_t> parse_gpus(std::string_view text);
std::string milli_text(uint64_t milli);  // thousandths as a number of wholes: "2", "0.5"
std::string gpus_text(uint64_t milli);   // "2 GPUs", "0.5 GPU"
std::string bytes_text(uint64_t bytes);  // rounded: "1.5 GiB", "16.0 EiB"
std::string counted(uint64_t number, const std::string& what);  // "1 lease", "2 leases"

}  // namespace gpupool::server
