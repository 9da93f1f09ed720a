// Multicast objects (virtual_memory.h). Executor's thread.
#include <algorithm>

#include "server/worker/memory/virtual_memory.h"

#if CUDA_VERSION >= 12010
namespace gpupool::worker {
namespace {

bool is_within(size_t offset, size_t size, uint64_t whole) {
  return size != 0 && size <= whole && offset <= whole - size;
}

}  // namespace

VirtualMemory::Allocation* VirtualMemory::find_multicast(CUmemGenericAllocationHandle object) {
  const auto known = created_.find(object);
  return known != created_.end() && known->second->is_multicast() ? known->second.get() : nullptr;
}

CUresult VirtualMemory::create_multicast(CUmemGenericAllocationHandle* handle,
                                         const CUmulticastObjectProp& properties) {
  if (!api_.cuMulticastCreate || !api_.cuMulticastUnbind || !api_.cuMemRelease)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (multicasts_ >= kMaxMulticasts) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Allocation>(api_, memory_, ExportedHandles::Memory::kOfNone, properties.size,
                                           properties.handleTypes);
  made->multicasts = &multicasts_;
  ++multicasts_;
  CUmulticastObjectProp wanted = properties;
  // Workers pass memory on as descriptors, whatever kind of handle the client requests.
  if (wanted.handleTypes != 0) wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUresult result = api_.cuMulticastCreate(&made->handle, &wanted);
  if (result == CUDA_SUCCESS) *handle = add(std::move(made));
  return result;
}

CUresult VirtualMemory::add_multicast_device(CUmemGenericAllocationHandle object, CUdevice device) {
  const Allocation* const found = find_multicast(object);
  if (!api_.cuMulticastAddDevice) return CUDA_ERROR_NOT_SUPPORTED;
  return found ? api_.cuMulticastAddDevice(found->handle, device) : CUDA_ERROR_INVALID_VALUE;
}

CUresult VirtualMemory::bind(CUmemGenericAllocationHandle object, size_t offset,
                             std::shared_ptr<Allocation> memory, size_t memory_offset, size_t size) {
  if (!api_.cuMulticastBindMem || !api_.cuMulticastUnbind) return CUDA_ERROR_NOT_SUPPORTED;
  Allocation* const found = find_multicast(object);
  if (!found || memory->is_multicast() || memory->away) return CUDA_ERROR_INVALID_VALUE;
  if (!is_within(offset, size, found->bytes) || !is_within(memory_offset, size, memory->bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result =
      api_.cuMulticastBindMem(found->handle, offset, memory->handle, memory_offset, size, 0);
  if (result == CUDA_SUCCESS) found->bound.push_back({std::move(memory), offset, size});
  return result;
}

CUresult VirtualMemory::bind_multicast(CUmemGenericAllocationHandle object, size_t offset,
                                       CUmemGenericAllocationHandle memory, size_t memory_offset,
                                       size_t size) {
  const auto known = created_.find(memory);
  return known != created_.end() ? bind(object, offset, known->second, memory_offset, size)
                                 : CUDA_ERROR_INVALID_VALUE;
}

CUresult VirtualMemory::bind_multicast_at(CUmemGenericAllocationHandle object, size_t offset,
                                          CUdeviceptr address, size_t size) {
  auto mapping = mapped_.upper_bound(address);
  if (mapping == mapped_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --mapping;
  const size_t into = address - mapping->first;
  if (!is_within(into, size, mapping->second.size)) return CUDA_ERROR_INVALID_VALUE;
  return bind(object, offset, mapping->second.allocation, mapping->second.offset + into, size);
}

CUresult VirtualMemory::unbind_multicast(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                         size_t size) {
  Allocation* const found = find_multicast(object);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const auto bound = std::find_if(found->bound.begin(), found->bound.end(), [&](const Bound& one) {
    return one.memory->device == device && one.offset == offset && one.size == size;
  });
  if (bound == found->bound.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = api_.cuMulticastUnbind(found->handle, device, offset, size);
  if (result == CUDA_SUCCESS) found->bound.erase(bound);
  return result;
}

}  // namespace gpupool::worker
#endif
