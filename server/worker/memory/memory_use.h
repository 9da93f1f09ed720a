// Reports how much of a device's memory is in use, also where the session has no context to query. NVIDIA's
// driver is queried through the NVML beside the device library; softgpu reports by itself.
#pragma once
#include <functional>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

class DeviceLibrary;

// Opens NVML; call while files can still be opened. The returned function may be called from any thread; it
// is null if neither source is available. `devices`: as returned by describe_devices().
std::function<MemoryUse(int device)> open_memory_use(const DeviceLibrary& library,
                                                     const std::vector<control::Device>& devices);

}  // namespace gpupool::worker
