// Checks which memory a context's kernels may use: memory that its device has access to, and memory of peers.
//
// All devices of a process share its address space, so any kernel could reach all of it. A kernel's
// parameters are checked when it starts; addresses that it reads from memory are not.
#pragma once
#include <cstdint>
#include <optional>

#include "server/softgpu/exec/grid.h"

namespace gpupool::softgpu {

class Context;
struct KernelInfo;

// Returns the first parameter that is an address of memory that the context's device cannot reach; nullopt if
// there is none, or if rule device_access is off. Only parameters of the size and alignment of an address are
// checked: two numbers beside each other can look like one. Any thread.
std::optional<uint64_t> unreachable_parameter(const Context& context, const KernelInfo& kernel,
                                              const PackedParameters& parameters);

}  // namespace gpupool::softgpu
