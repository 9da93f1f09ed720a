// Allocation and free nodes of graphs (client/graphs/graph_memory.h).
#include "client/graphs/graph_memory.h"

#include "client/api/graph.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace gpupool::client {

CUresult make_alloc_work(CUDA_MEM_ALLOC_NODE_PARAMS* params, Context* context, NodeWork& work) {
  if (!params || params->bytesize == 0 || params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (params->poolProps.location.id != context->device->ordinal) return CUDA_ERROR_NOT_SUPPORTED;
  AllocWork made;
  if (const CUresult result = graph_memory::allocate(*context, params->bytesize, &made.memory);
      result != CUDA_SUCCESS)
    return result;
  params->dptr = made.memory->address;
  made.params = *params;
  made.params.accessDescs = nullptr;
  made.params.accessDescCount = 0;
  work = std::move(made);
  return CUDA_SUCCESS;
}

CUresult make_free_work(CUdeviceptr address, NodeWork& work) {
  FreeWork made{graph_memory::find(address)};
  if (!made.memory || made.memory->address != address) return CUDA_ERROR_INVALID_VALUE;
  work = std::move(made);
  return CUDA_SUCCESS;
}

}  // namespace gpupool::client
