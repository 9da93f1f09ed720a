// Attributes of kernel nodes.
#include "client/api/graph.h"
#include "protocol/calls/launch_check.h"
#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

CUDA_EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   const CUkernelNodeAttrValue* value) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!value || !cuda::is_launch_attribute(id)) return CUDA_ERROR_INVALID_VALUE;
    CUlaunchAttribute made{};
    made.id = id;
    made.value = *value;
    if (cuda::is_launch_only_attribute(made)) return CUDA_ERROR_INVALID_VALUE;
    auto& kernel = std::get<KernelWork>(node.work);
    auto attributes = kernel.attributes();
    std::erase_if(attributes, [&](const CUlaunchAttribute& known) { return known.id == id; });
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) kernel.launch.flags &= ~wire::kLaunchCooperative;
    attributes.push_back(made);
    if (attributes.size() > wire::kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
    kernel.set_attributes(attributes);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                                   CUkernelNodeAttrValue* value) {
  return on_node_of(handle, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& node) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const auto& kernel = std::get<KernelWork>(node.work);
    *value = {};
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      value->cooperative = (kernel.launch.flags & wire::kLaunchCooperative) != 0;
    for (const CUlaunchAttribute& known : kernel.attributes()) {
      if (known.id == id) *value = known.value;
    }
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return on_node_of(from, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode& source) -> CUresult {
    GraphNode* const target = find_node(to);
    if (!target || target->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    const auto& kernel = std::get<KernelWork>(source.work);
    std::get<KernelWork>(target->work).set_attributes(kernel.attributes());
    std::get<KernelWork>(target->work).launch.flags = kernel.launch.flags;
    return CUDA_SUCCESS;
  });
}
