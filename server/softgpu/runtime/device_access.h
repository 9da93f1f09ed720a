// Which memory the kernels of a context may use: what its device has been given access to, and memory of peers.
//
// All devices of a process share its address space, and any of their kernels could reach all of it. So a kernel's parameters are looked at when it
// starts; addresses that it reads from memory are not.
#pragma once
#include <cstdint>
#include <optional>

#include "server/softgpu/exec/grid.h"

namespace gpupool::softgpu {

class Context;

// The first parameter that is an address of memory which the context's device cannot reach. Any thread.
std::optional<uint64_t> unreachable_parameter(const Context& context, const PackedParameters& parameters);

}  // namespace gpupool::softgpu
