// Conditional handles and conditional nodes of graphs (runtime/conditional.h).
#include "protocol/calls/conditional_check.h"
#include "server/softgpu/runtime/api/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

#if CUDA_VERSION >= 12030
namespace {

constexpr unsigned kMaxBodies = 1u << 16;

}  // namespace

namespace gpupool::softgpu::api {

CUresult set_conditional(GraphNode& node, CUDA_CONDITIONAL_NODE_PARAMS& params) {
  const Ref<Condition> condition = runtime().handles().find<Condition>(params.handle);
  if (!condition || !gpupool::cuda::may_have_bodies(static_cast<unsigned>(params.type), params.size) ||
      params.size > kMaxBodies)
    return CUDA_ERROR_INVALID_VALUE;
  node.conditional = std::make_unique<Conditional>();
  node.conditional->condition = condition;
  node.conditional->type = static_cast<uint32_t>(params.type);
  for (unsigned i = 0; i < params.size; ++i) {
    const Ref<Graph> body = make_ref<Graph>();
    body->handle = runtime().handles().add(body);
    if (body->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    node.conditional->bodies.push_back(body);
    node.conditional->body_handles.push_back(make_handle<CUgraph>(body->handle));
  }
  params.phGraph_out = node.conditional->body_handles.data();
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu::api

CUDA_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph_handle,
                                                    CUcontext context, unsigned initial, unsigned flags) {
  if (handle == nullptr || (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return call_in_context([&](Context&) {
    if (context != nullptr && !find<Context>(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return call_on_graph<Graph>(graph_handle, [&](Graph& graph) {
      const Ref<Condition> condition =
          make_ref<Condition>(initial, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0);
      const uint64_t value = runtime().handles().add(condition);
      if (value == 0) return CUDA_ERROR_OUT_OF_MEMORY;
      condition->publish(value);
      graph.conditions.emplace_back(value, condition);
      *handle = value;
      return CUDA_SUCCESS;
    });
  });
}
#endif
