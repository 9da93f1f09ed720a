#include "server/worker/handlers/multicast_guards.h"

#include "server/worker/session/session.h"

#if CUDA_VERSION >= 12010
namespace gpupool::worker::guards {
namespace {

constexpr unsigned kFabric = 8;  // CU_MEM_HANDLE_TYPE_FABRIC, CUDA 12.3

bool is_plain(const CUmulticastObjectProp* properties) {
  return properties && properties->numDevices != 0 && properties->size != 0 && properties->flags == 0 &&
         (properties->handleTypes &
          ~static_cast<unsigned long long>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | kFabric)) == 0;
}

}  // namespace

CUresult create_multicast(CUmemGenericAllocationHandle* object, const CUmulticastObjectProp* properties) {
  if (!object || !is_plain(properties)) return CUDA_ERROR_INVALID_VALUE;
  return t_session->virtual_memory.create_multicast(object, *properties);
}

CUresult add_multicast_device(CUmemGenericAllocationHandle object, CUdevice device) {
  return t_session->virtual_memory.add_multicast_device(object, device);
}

CUresult bind_multicast_memory(CUmemGenericAllocationHandle object, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
  return flags == 0 ? t_session->virtual_memory.bind_multicast(object, offset, memory, memory_offset, size)
                    : CUDA_ERROR_INVALID_VALUE;
}

CUresult bind_multicast_address(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                                size_t size, unsigned long long flags) {
  return flags == 0 ? t_session->virtual_memory.bind_multicast_at(object, offset, address, size)
                    : CUDA_ERROR_INVALID_VALUE;
}

CUresult unbind_multicast(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
  return t_session->virtual_memory.unbind_multicast(object, device, offset, size);
}

// Workers pass the object on as a descriptor, whatever kind of handle the client requests.
CUresult multicast_granularity(size_t* granularity, const CUmulticastObjectProp* properties,
                               CUmulticastGranularity_flags option) {
  if (!granularity || !is_plain(properties)) return CUDA_ERROR_INVALID_VALUE;
  CUmulticastObjectProp made = *properties;
  if (made.handleTypes != 0) made.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return t_session->guarded.cuMulticastGetGranularity(granularity, &made, option);
}

}  // namespace gpupool::worker::guards
#endif
