// Wrappers for rows whose arguments the driver would trust too far (structs with addresses and host pointers,
// objects that a wait thread still uses), for rows that count as GPU work, and for rows whose reply must not
// overtake earlier data. A wrapper has the signature of the driver's function, and the row calls it instead.
// The row checks device addresses that are parameters before that, by their roles
// (protocol/calls/device_address.h). guards.def lists the rows. Executor's thread only.
#pragma once
#include <span>
#include <string_view>

#include "protocol/driver/cuda_header.h"
#include "server/worker/images/postponed_unloads.h"
#include "server/worker/session/session_start.h"
#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {
class DeviceMemory;
}

namespace gpupool::worker::guards {

// Checks that all operations are known and access the session's own memory only.
CUresult check_operations(const DeviceMemory& memory, std::span<const CUstreamBatchMemOpParams> operations);

// Calls `unload` now, or postpones it until the driver has all work that was launched before
// (postponed_unloads.h).
CUresult unload_after_kept_commands(CUcontext context, uint64_t handle, PostponedUnloads::Unload unload);

// Checks that the copy stays within the session's memory and arrays, and replaces the client's handles of
// arrays by the driver's. Rejects host memory.
CUresult check_copy(CUDA_MEMCPY3D& copy);

// The driver's functions behind the wrappers; null where the device library lacks them.
struct Calls {
#define GUARD_CALLS(name) DeviceCall<decltype(&::name)> name{#name};
#define GUARD(name, wrapper) GUARD_CALLS(name)
#include "server/worker/handlers/guards.def"
#undef GUARD
  void load(const SymbolLookup& symbol);
  // Returns the wrapper for `name`, or null if the row is not guarded.
  void* wrapper(std::string_view name) const;
};

}  // namespace gpupool::worker::guards
