#include "server/softgpu/exec/grid.h"

#include <algorithm>
#include <thread>

#include "server/softgpu/exec/faults.h"
#include "server/softgpu/exec/pool.h"
#include "server/softgpu/memory/address_space.h"

namespace gpupool::softgpu {

std::unique_ptr<GridExecutor> GridExecutor::create(unsigned threads, DeviceTurns* turns) {
  if (!reserve_range() || !install_fault_handlers()) return nullptr;
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  return std::make_unique<Pool>(threads, turns);
}

}  // namespace gpupool::softgpu
