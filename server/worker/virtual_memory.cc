#include "server/worker/virtual_memory.h"

namespace gpupool::worker {

CUresult VirtualMemory::create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp& properties,
                               unsigned long long flags) {
  const int device = properties.location.id;
  if (const CUresult result = memory_.charge(device, size); result != CUDA_SUCCESS) return result;
  auto charge = std::make_shared<Charge>(memory_, device, size);
  CUresult result = memory_.create(handle, size, properties, flags);
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

}  // namespace gpupool::worker
