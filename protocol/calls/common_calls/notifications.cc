// Notifications from a device to a program. The only type says that the process exceeds its memory budget.
// Neither library takes memory back, so a registered callback is kept and never called. Also
// cuProfilerInitialize, which NVIDIA's driver has rejected since CUDA 12.
#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "protocol/calls/common_calls/device_check.h"

CUDA_EXPORT CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

#if CUDA_VERSION >= 12040
namespace {

struct Registered {
  CUdevice device;
  CUasyncCallback callback;
  void* data;
};
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Registered>> entries;
};
Registry& registry() {
  static Registry* const only = new Registry;
  return *only;
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callback, void* data,
                                                       CUasyncCallbackHandle* handle) {
  if (const CUresult result = check_device(device); result != CUDA_SUCCESS) return result;
  if (!callback || !handle) return CUDA_ERROR_INVALID_VALUE;
  try {
    const std::lock_guard lock(registry().mutex);
    registry().entries.push_back(std::make_unique<Registered>(Registered{device, callback, data}));
    *handle = reinterpret_cast<CUasyncCallbackHandle>(registry().entries.back().get());
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUDA_EXPORT CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle handle) {
  if (const CUresult result = check_device(device); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(registry().mutex);
  const auto gone = std::erase_if(registry().entries, [&](const auto& entry) {
    return reinterpret_cast<CUasyncCallbackHandle>(entry.get()) == handle && entry->device == device;
  });
  return gone != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#endif
