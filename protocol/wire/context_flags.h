// CreateContext::flags beyond CUctx_flags.
#pragma once
#include <cstdint>

namespace gpupool::wire {

// A green context: the handle of what describe_resources described (u64) follows. It uses what the device's primary context has.
constexpr uint32_t kGreenContext = 1u << 31;

}  // namespace gpupool::wire
