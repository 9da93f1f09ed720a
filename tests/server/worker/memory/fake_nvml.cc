// The part of NVML that workers call, for the devices of fake_device.cc. FAKE_NVML=stranger does not list
// this process, FAKE_NVML=none lists no processes.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "protocol/nvml/nvml.h"

#define FAKE extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace {

bool says(const char* word) {
  const char* const text = std::getenv("FAKE_NVML");
  return text != nullptr && std::strcmp(text, word) == 0;
}

}  // namespace

FAKE nvmlInit_v2() {
  return NVML_SUCCESS;
}
FAKE nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  // The first device of fake_device.cc, and the second one as a MIG instance.
  if (std::strcmp(uuid, "GPU-61616161-6161-6161-6161-616161616161") == 0)
    *device = reinterpret_cast<nvmlDevice_t>(1);
  else if (std::strcmp(uuid, "MIG-62626262-6262-6262-6262-626262626262") == 0)
    *device = reinterpret_cast<nvmlDevice_t>(2);
  else
    return NVML_ERROR_NOT_FOUND;
  return NVML_SUCCESS;
}
FAKE nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  *memory = {.total = 1000, .free = 300, .used = 700 + reinterpret_cast<uintptr_t>(device)};
  return NVML_SUCCESS;
}
FAKE nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                             nvmlProcessInfo_t* infos) {
  constexpr unsigned kStrangers = 100;  // more than fit into a caller's first buffer
  if (says("none")) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned all = kStrangers + (says("stranger") ? 0 : 1), room = *count;
  *count = all;
  if (room < all) return NVML_ERROR_INSUFFICIENT_SIZE;
  const auto own = static_cast<unsigned>(::getpid());
  for (unsigned i = 0; i < all; ++i) {
    infos[i].pid = i < kStrangers ? own + 1 + i : own;
    infos[i].usedGpuMemory = 500 + reinterpret_cast<uintptr_t>(device);
  }
  return NVML_SUCCESS;
}
