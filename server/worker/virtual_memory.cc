#include "server/worker/virtual_memory.h"

namespace gpupool::worker {

CUresult VirtualMemory::create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp& properties,
                               unsigned long long flags) {
  const int device = properties.location.id;
  if (const CUresult result = memory_.charge(device, size); result != CUDA_SUCCESS) return result;
  auto charge = std::make_shared<Charge>(memory_, device, size, properties.requestedHandleTypes);
  // Whatever kind of handle the client wants, workers pass it on as a descriptor.
  CUmemAllocationProp on_device = properties;
  if (properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    if (!memory_.shareable(device)) return CUDA_ERROR_NOT_SUPPORTED;
    on_device.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  CUresult result = memory_.create(handle, size, on_device, flags);
  if (result != CUDA_SUCCESS) return result;
  result = scrubber_.clear_unmapped(*handle, size, properties.location);
  if (result != CUDA_SUCCESS) {
    api_.cuMemRelease(*handle);
    return result;
  }
  created_[*handle] = std::move(charge);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::release(CUmemGenericAllocationHandle handle) {
  if (!api_.cuMemRelease) return CUDA_ERROR_NOT_SUPPORTED;
  memory_.releasing(handle);
  const CUresult result = api_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) created_.erase(handle);
  return result;
}

CUresult VirtualMemory::map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags) {
  const auto known = created_.find(handle);
  if (known == created_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = api_.cuMemMap(address, size, offset, handle, flags);
  if (result == CUDA_SUCCESS) mapped_[address] = known->second;
  return result;
}

CUresult VirtualMemory::unmap(CUdeviceptr address, size_t size) {
  const CUresult result = api_.cuMemUnmap(address, size);
  if (result == CUDA_SUCCESS) mapped_.erase(mapped_.lower_bound(address), mapped_.lower_bound(address + size));
  return result;
}

CUresult VirtualMemory::share(CUmemGenericAllocationHandle handle, Offers::Memory* memory) {
  const auto known = created_.find(handle);
  if (known == created_.end() || known->second->handle_types == CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  Charge& charge = *known->second;
  if (const CUresult result = memory_.share_charge(charge.device, charge.bytes, &charge.shared); result != CUDA_SUCCESS) return result;
  *memory = {handle, charge.bytes, charge.device, charge.handle_types, charge.shared};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::import(int descriptor, const Offers::Memory& memory, CUmemGenericAllocationHandle* handle) {
  if (!api_.cuMemImportFromShareableHandle || !api_.cuMemRelease) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult charged = memory_.join_charge(memory.device, memory.size, memory.charge);
  if (charged != CUDA_SUCCESS) return charged;
  auto charge = std::make_shared<Charge>(memory_, memory.device, memory.size, memory.handle_types, memory.charge);
  const CUresult result = api_.cuMemImportFromShareableHandle(handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) created_[*handle] = std::move(charge);
  return result;
}

}  // namespace gpupool::worker
