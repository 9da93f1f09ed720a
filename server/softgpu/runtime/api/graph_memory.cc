// Memory nodes of graphs.
#include "server/softgpu/runtime/graph_memory.h"

#include "server/softgpu/runtime/api/graph.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace gpupool::softgpu::api {

CUresult set_alloc(GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS* params, Context* context) {
  if (params == nullptr || params->bytesize == 0 ||
      params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (params->poolProps.location.id != context->device().index()) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = allocate_graph_memory(*context, params->bytesize, &node.memory);
      result != CUDA_SUCCESS)
    return result;
  params->dptr = node.memory->address;
  node.alloc = *params;
  node.alloc.accessDescs = nullptr;
  node.alloc.accessDescCount = 0;
  return CUDA_SUCCESS;
}

CUresult set_free(GraphNode& node, CUdeviceptr address) {
  node.memory = cuda::graph_memory::find(address);
  return node.memory && node.memory->address == address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    if (node.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *params = node.alloc;
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* address) {
  return call_on_graph<GraphNode>(handle, [&](GraphNode& node) {
    if (node.type != CU_GRAPH_NODE_TYPE_MEM_FREE || address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *address = node.memory->address;
    return CUDA_SUCCESS;
  });
}
