// A library in place of libnvidia-ml.so.1: one GPU, which has some sensors and lacks others. Environment
// variables: FAKE_NVML_HANGS has each reading make a file of this name and take a minute; FAKE_NVML_UUID_FILE
// names the file with the GPU's UUID.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "protocol/nvml/nvml.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT nvmlReturn_t nvmlInit_v2() {
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "580.95\n");
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = nullptr;
  return index == 0 ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}
EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned length) {
  if (const char* const hangs = std::getenv("FAKE_NVML_HANGS")) {
    if (std::FILE* const file = std::fopen(hangs, "w")) std::fclose(file);
    ::sleep(60);
  }
  const char* const path = std::getenv("FAKE_NVML_UUID_FILE");
  if (path == nullptr) {
    std::snprintf(uuid, length, "GPU-00000000-0000-0000-0000-000000000001");
    return NVML_SUCCESS;
  }
  std::FILE* const file = std::fopen(path, "r");
  if (file == nullptr) return NVML_ERROR_NOT_FOUND;
  const bool read = std::fgets(uuid, static_cast<int>(length), file) != nullptr;
  std::fclose(file);
  return read ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t, unsigned sensor, unsigned* degrees) {
  *degrees = 41;
  return sensor == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t, unsigned*) {
  return NVML_ERROR_NOT_SUPPORTED;
}
EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t, unsigned long long* millijoules) {
  *millijoules = 123'456'789'012ull;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t, unsigned type, unsigned* mhz) {
  *mhz = 1000 + type;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t* rates) {
  *rates = {73, 12};
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  memory->used = 5;
  memory->free = 6;
  memory->reserved = 7;
  return NVML_SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t, unsigned kind, unsigned counter,
                                                unsigned long long* count) {
  *count = 10 * kind + counter;
  return NVML_SUCCESS;
}
