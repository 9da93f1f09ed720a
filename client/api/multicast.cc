// Multicast objects: handles like those of memory (client/memory/virtual_memory.h), implemented by the
// server's driver if it supports them. The devices and the memory bound to an object belong to one server.
#include <algorithm>

#include "client/memory/virtual_memory.h"
#include "client/session/call.h"
#include "protocol/driver/exports.h"

#if CUDA_VERSION >= 12010

using namespace gpupool;
using namespace gpupool::client;

namespace {

bool has_multicast(const Device& device) {
  const auto found = device.attributes.find(kMulticastSupported);
  return found != device.attributes.end() && found->second != 0;
}

// Checked before any argument, as in drivers that do not support multicast.
CUresult ready_for_multicast() {
  if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
  const bool supported = std::any_of(devices().begin(), devices().end(),
                                     [](const auto& device) { return has_multicast(*device); });
  return supported ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

Memory* find_object(CUmemGenericAllocationHandle handle) {
  Memory* const memory = find_memory(handle);
  return memory && memory->multicast ? memory : nullptr;
}

bool is_within(size_t offset, size_t size, uint64_t whole) {
  return size != 0 && size <= whole && offset <= whole - size;
}

// Checks that the object's server has the device.
CUresult check_device(const Memory* object, CUdevice ordinal) {
  const Device* const device = find_device(ordinal);
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  return device && device->session == object->session ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

CUDA_EXPORT CUresult cuMulticastGetGranularity(size_t* granularity, const CUmulticastObjectProp* properties,
                                               CUmulticastGranularity_flags option) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    if (!granularity || !properties) return CUDA_ERROR_INVALID_VALUE;
    return rows::cuMulticastGetGranularity::at({devices().front()->session},
                                               {granularity, properties, option});
  });
}

CUDA_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle,
                                       const CUmulticastObjectProp* properties) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    if (!handle || !properties || properties->size == 0) return CUDA_ERROR_INVALID_VALUE;
    if ((properties->handleTypes & ~static_cast<unsigned long long>(kShareableHandleTypes)) != 0)
      return CUDA_ERROR_NOT_SUPPORTED;
    const Device& device = *devices().front();
    auto made = std::make_unique<Memory>();
    made->size = properties->size;
    made->multicast = true;
    made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
    made->properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(properties->handleTypes);
    const uint64_t minted = device.session->mint(Kind::memory, std::move(made));
    if (minted == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Buffer reply;
    const CUresult result = device.session->call(
        rows::cuMulticastCreate::kId, nullptr,
        [&](wire::Writer& writer) {
          writer.put(minted);
          writer.put<uint8_t>(1);
          writer.put(*properties);
        },
        reply);
    if (result != CUDA_SUCCESS)
      handles().retire(minted);
    else
      *handle = minted;
    return result;
  });
}

CUDA_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    const Memory* const object = find_object(handle);
    if (const CUresult result = check_device(object, ordinal); result != CUDA_SUCCESS) return result;
    return rows::cuMulticastAddDevice::at({object->session}, {handle, ordinal});
  });
}

CUDA_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                        CUmemGenericAllocationHandle given, size_t memory_offset, size_t size,
                                        unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    const Memory* const object = find_object(handle);
    const Memory* const memory = find_memory(given);
    if (!object || !memory || memory->multicast || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_within(offset, size, object->size) || !is_within(memory_offset, size, memory->size))
      return CUDA_ERROR_INVALID_VALUE;
    if (memory->session != object->session) return CUDA_ERROR_INVALID_DEVICE;
    return rows::cuMulticastBindMem::at({object->session},
                                        {handle, offset, given, memory_offset, size, flags});
  });
}

CUDA_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                                         CUdeviceptr address, size_t size, unsigned long long flags) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    const Memory* const object = find_object(handle);
    if (!object || flags != 0 || !is_within(offset, size, object->size)) return CUDA_ERROR_INVALID_VALUE;
    return rows::cuMulticastBindAddr::at({object->session}, {handle, offset, address, size, flags});
  });
}

CUDA_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset,
                                       size_t size) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready_for_multicast(); result != CUDA_SUCCESS) return result;
    const Memory* const object = find_object(handle);
    if (const CUresult result = check_device(object, ordinal); result != CUDA_SUCCESS) return result;
    return rows::cuMulticastUnbind::at({object->session}, {handle, ordinal, offset, size});
  });
}
#endif
