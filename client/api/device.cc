// Devices: answered from the servers' hellos, without a round trip.
#include <strings.h>

#include <algorithm>
#include <cstring>

#include "client/session/call.h"
#include "protocol/driver/exports.h"
#include "protocol/driver/pci_address.h"

using namespace gpupool::client;

namespace {

CUresult find(CUdevice ordinal, const Device** device) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  *device = find_device(ordinal);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Truncates to the buffer and always terminates, as CUDA does.
CUresult copy_text(const std::string& text, char* to, int size) {
  if (!to || size <= 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t length = std::min<size_t>(text.size(), size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
  return CUDA_SUCCESS;
}

int attribute_of(const Device& device, int attribute) {
  const auto found = device.attributes.find(attribute);
  return found == device.attributes.end() ? 0 : found->second;
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice ordinal) {
  const Device* device = nullptr;
  const CUresult result = find(ordinal, &device);
  return result == CUDA_SUCCESS ? copy_text(device->name, name, size) : result;
}

CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  const Device* device = nullptr;
  if (const CUresult result = find(ordinal, &device); result != CUDA_SUCCESS) return result;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const auto found = device->attributes.find(attribute);
  if (found == device->attributes.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  const Device* device = nullptr;
  if (const CUresult result = find(ordinal, &device); result != CUDA_SUCCESS) return result;
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  const auto attribute = [&](CUdevice_attribute id) { return attribute_of(*device, id); };
  properties->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  properties->maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  properties->maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  properties->maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  properties->maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  properties->maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  properties->maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  properties->sharedMemPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties->totalConstantMemory = attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties->SIMDWidth = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  properties->memPitch = attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  properties->clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  properties->textureAlign = attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUDA_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice ordinal) {
  const Device* device = nullptr;
  const CUresult result = find(ordinal, &device);
  return result == CUDA_SUCCESS ? copy_text(device->pci_bus_id, id, size) : result;
}

CUDA_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
  if (!gpupool::cuda::parse_pci_address(id)) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& known : devices()) {
    const std::string& full = known->pci_bus_id;  // "0000:01:00.0"; the domain or the function may be omitted
    const std::string wanted = id;
    const auto matches = [&](const std::string& text) { return strcasecmp(text.c_str(), id) == 0; };
    const std::string no_domain = full.substr(std::min(full.find(':') + 1, full.size()));
    const std::string no_function = full.substr(0, full.rfind('.'));
    if (matches(full) || matches(no_domain) || matches(no_function)) {
      *device = known->ordinal;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

#if CUDA_VERSION >= 13000
// Host and device memory are on different machines, so no operation is atomic between them.
CUDA_EXPORT CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                                       const CUatomicOperation* operations,
                                                       unsigned int count, CUdevice ordinal) {
  const Device* device = nullptr;
  if (const CUresult result = find(ordinal, &device); result != CUDA_SUCCESS) return result;
  if (!capabilities || !operations || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX) return CUDA_ERROR_INVALID_VALUE;
  }
  std::fill_n(capabilities, count, 0u);
  return CUDA_SUCCESS;
}
#endif
