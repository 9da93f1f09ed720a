// cuGraphDebugDotPrint: writes a graph in the DOT language.
#include <fstream>

#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

const char* name_of(CUgraphNodeType type) {
  switch (static_cast<int>(type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY: return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "BATCH_MEM_OP";
    case 13: return "CONDITIONAL";
    default: return "OTHER";
  }
}

constexpr unsigned kShowKernelParameters =
    CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS;

void print_launch(std::ofstream& out, const GridRequest& request) {
  const auto [grid_x, grid_y, grid_z] = request.grid_dim;
  const auto [block_x, block_y, block_z] = request.block_dim;
  out << "\\ngrid " << grid_x << ' ' << grid_y << ' ' << grid_z;
  out << "\\nblock " << block_x << ' ' << block_y << ' ' << block_z;
  out << "\\nshared memory " << request.dynamic_shared_bytes;
}

void print(std::ofstream& out, const Graph& graph, unsigned flags) {
  for (const Ref<GraphNode>& node : graph.nodes) {
    out << "  n" << node->handle << " [label=\"" << name_of(node->type);
    if (const auto* const grid = dynamic_cast<const GridOp*>(node->prototype.get())) {
      out << "\\n" << grid->function().kernel().name;
      if (flags & kShowKernelParameters) print_launch(out, grid->request());
    }
    out << "\"];\n";
    for (const GraphNode* const dependent : node->dependents)
      out << "  n" << node->handle << " -> n" << dependent->handle << ";\n";
    if (node->child) print(out, *node->child, flags);
    if (!node->conditional) continue;
    for (const Ref<Graph>& body : node->conditional->bodies) print(out, *body, flags);
  }
}

}  // namespace

CUDA_EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ofstream out(path);
    out << "digraph {\n";
    print(out, graph, flags);
    out << "}\n";
    out.flush();
    return out ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}
