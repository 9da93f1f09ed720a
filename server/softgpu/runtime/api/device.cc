// Devices and their properties.
#include <cstdio>
#include <cstring>

#include "protocol/driver/pci_address.h"
#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/array.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

template <class Body>
CUresult call_on_device(CUdevice index, const Body& body) noexcept {
  return call([&] {
    Device* device = runtime().device(index);
    return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*device);
  });
}

}  // namespace

CUDA_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call([&] {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (runtime().device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetCount(int* count) {
  return call([&] {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(runtime().devices().size());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, static_cast<size_t>(length), "%s", device.name().c_str());
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *uuid = device.uuid();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device.shared().total_bytes();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    const auto answer = device.attribute(attribute);
    if (value == nullptr || !answer) return CUDA_ERROR_INVALID_VALUE;
    *value = *answer;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *major = device.capability_major();
    *minor = device.capability_minor();
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *properties = CUdevprop{};
    properties->maxThreadsPerBlock = limits::kMaxThreads;
    properties->maxThreadsDim[0] = limits::kMaxBlockX;
    properties->maxThreadsDim[1] = limits::kMaxBlockY;
    properties->maxThreadsDim[2] = limits::kMaxBlockZ;
    properties->maxGridSize[0] = limits::kMaxGridX;
    properties->maxGridSize[1] = limits::kMaxGridY;
    properties->maxGridSize[2] = limits::kMaxGridZ;
    properties->sharedMemPerBlock = limits::kSharedPerBlock;
    properties->totalConstantMemory = 64 << 10;
    properties->SIMDWidth = static_cast<int>(kWarpSize);
    properties->memPitch = *device.attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    properties->regsPerBlock = limits::kRegisters;
    properties->clockRate = *device.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = *device.attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    const Device::PciId pci = device.pci();
    const int written =
        snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.0", static_cast<unsigned>(pci.domain),
                 static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.device));
    return written < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUDA_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return call([&] {
    if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto address = gpupool::cuda::parse_pci_address(text);
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& candidate : runtime().devices()) {
      const Device::PciId pci = candidate->pci();
      if (static_cast<unsigned>(pci.domain) == address->domain &&
          static_cast<unsigned>(pci.bus) == address->bus &&
          static_cast<unsigned>(pci.device) == address->device) {
        *device = candidate->index();
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

CUDA_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice index, CUdevice peer) {
  return call([&] {
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (runtime().device(index) == nullptr || runtime().device(peer) == nullptr)
      return CUDA_ERROR_INVALID_DEVICE;
    *can = index != peer ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source,
                                             CUdevice destination) {
  return call([&] {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (runtime().device(source) == nullptr || runtime().device(destination) == nullptr ||
        source == destination) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 1; return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

#if CUDA_VERSION >= 13000
CUDA_EXPORT CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                                       const CUatomicOperation* operations,
                                                       unsigned int count, CUdevice index) {
  return call_on_device(index, [&](Device&) {
    if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX) return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
      capabilities[i] = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED |
                        CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
    }
    return CUDA_SUCCESS;
  });
}
CUDA_EXPORT CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                                      const CUatomicOperation* operations, unsigned int count,
                                                      CUdevice source, CUdevice destination) {
  const CUresult there = call_on_device(destination, [](Device&) { return CUDA_SUCCESS; });
  if (there != CUDA_SUCCESS) return there;
  if (source == destination) return CUDA_ERROR_INVALID_DEVICE;
  return cuDeviceGetHostAtomicCapabilities(capabilities, operations, count, source);
}
#endif

CUDA_EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format format,
                                                        unsigned channels, CUdevice index) {
  return call_on_device(index, [&](Device&) {
    if (width == nullptr || !texel_format(format, channels)) return CUDA_ERROR_INVALID_VALUE;
    *width = limits::kLinear1d;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType type, CUdevice index) {
  return call_on_device(index, [&](Device&) {
    if (supported == nullptr || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice index) {
  return call_on_device(index, [&](Device& device) {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = make_handle<CUmemoryPool>(device.default_pool()->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice index) {
  return call([&] {
    const Device* const device = runtime().device(index);
    if (pool == nullptr || device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = make_handle<CUmemoryPool>(device->pool()->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuDeviceSetMemPool(CUdevice index, CUmemoryPool handle) {
  return call([&] {
    Device* const device = runtime().device(index);
    Ref<MemoryPool> pool = find<MemoryPool>(handle);
    if (!pool || &pool->device() != device) return CUDA_ERROR_INVALID_VALUE;
    device->set_pool(std::move(pool));
    return CUDA_SUCCESS;
  });
}
