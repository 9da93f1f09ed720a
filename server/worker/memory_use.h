// How much of a device's memory is in use, asked where a session may have no context to ask in: of NVIDIA's driver its NVML, which lies beside
// the device library; softgpu tells by itself. Opened once, while files can be opened; then any thread.
#pragma once
#include <functional>
#include <vector>

#include "protocol/control/hello.pb.h"
#include "server/worker/session.h"

namespace gpupool::worker {

class DeviceLibrary;

// `devices` as describe_devices() gives them. Null: nothing tells.
std::function<MemoryUse(int device)> open_memory_use(const DeviceLibrary& library, const std::vector<control::Device>& devices);

}  // namespace gpupool::worker
