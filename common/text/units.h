// Parses and writes sizes, rates and parts of GPUs: "8GiB", "1.5GB", "4096", "1GB/s", "12.5". Used by poold,
// pool-scheduler, pool-run and pool-admin. Any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool {

constexpr uint32_t kWholeGpu = 1000;  // parts of a GPU are counted in thousandths

// Parses a size exactly. ErrorCode::invalid: not a size, not a whole number of bytes, or more than 64 bits.
Result<uint64_t> parse_size(std::string_view text);
// Parses a size that is 0 or at least 1 MiB. Less is ErrorCode::invalid: the unit was probably forgotten.
Result<uint64_t> parse_memory(std::string_view text);
Result<uint64_t> parse_rate(std::string_view text);  // bytes per second
// Writes the size exactly in the shortest form: "8GiB", "1500MB", "4097".
std::string size_text(uint64_t bytes);

// Parses a percentage of a GPU, from 0.1 to 100 with at most one decimal. Returns thousandths.
Result<uint32_t> parse_compute(std::string_view text);
std::string percent_text(uint64_t milli);  // "25", "12.5"
// Parses a number of GPUs, up to 10^9. Returns thousandths of a GPU.
Result<uint64_t> parse_gpus(std::string_view text);
std::string milli_text(uint64_t milli);  // thousandths as a number of wholes: "2", "0.5"
std::string gpus_text(uint64_t milli);   // "2 GPUs", "0.5 GPU"
std::string bytes_text(uint64_t bytes);  // rounded: "1.5 GiB", "16.0 EiB"
std::string counted(uint64_t number, const std::string& what);  // "1 lease", "2 leases"

}  // namespace gpupool
