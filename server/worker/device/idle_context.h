// The context on the first device that an idle worker keeps for its session (poold --idle-contexts). A first
// context takes NVIDIA's driver about 170 ms on an H200; a session that finds one starts without that wait.
#pragma once
#include <cstdint>
#include <functional>

#include "server/worker/session/session_start.h"

namespace gpupool::worker {

class DeviceLibrary;

// Retains the first device's primary context. `memory_use`: as in SessionStart. A refusal is logged, and the
// session makes its contexts itself.
IdleContext make_idle_context(const DeviceLibrary& library,
                              const std::function<MemoryUse(int device)>& memory_use);

}  // namespace gpupool::worker
