// Stands in for exec/ in a tree without it: no kernel can be launched.
#include "server/softgpu/exec/grid.h"

namespace gpupool::softgpu {
std::unique_ptr<GridExecutor> GridExecutor::create(unsigned, DeviceTurns*) {
  return nullptr;
}
std::string take_printf_output() {
  return {};
}
}  // namespace gpupool::softgpu
