#include "server/worker/device/idle_context.h"

#include "common/log/log.h"
#include "server/worker/device/device_library.h"

namespace gpupool::worker {
IdleContext make_idle_context(const DeviceLibrary& library,
                              const std::function<MemoryUse(int device)>& memory_use) {
  const auto retain = DEVICE_CALL(library, cuDevicePrimaryCtxRetain);
  const auto release = DEVICE_CALL(library, cuDevicePrimaryCtxRelease_v2);
  if (retain == nullptr || release == nullptr) return {};
  const MemoryUse before = memory_use ? memory_use(kIdleContextDevice) : MemoryUse{};
  CUcontext context = nullptr;
  if (const CUresult result = retain(&context, kIdleContextDevice); result != CUDA_SUCCESS) {
    log::warning("no_idle_context", {{"reason", error_text(library, result)}});
    return {};
  }
  const MemoryUse after = memory_use ? memory_use(kIdleContextDevice) : MemoryUse{};
  return {.primary_release = release, .bytes = context_growth(before, after, 0)};
}

}  // namespace gpupool::worker
