// Internal to memory/: creates the DeviceTurns of a device whose state is in `file`, which must outlive them.
#pragma once
#include <memory>

#include "server/softgpu/memory/shared_device.h"
#include "server/softgpu/memory/shared_file.h"

namespace gpupool::softgpu {

std::unique_ptr<DeviceTurns> make_turns(SharedFile& file);

}  // namespace gpupool::softgpu
