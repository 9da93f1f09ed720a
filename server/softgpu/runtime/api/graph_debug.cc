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

void print(std::ofstream& out, const Graph& graph) {
  for (const Ref<GraphNode>& node : graph.nodes) {
    out << "  n" << node->handle << " [label=\"" << name_of(node->type);
    if (const auto* const grid = dynamic_cast<const GridOp*>(node->prototype.get()))
      out << "\\n" << grid->function().kernel().name;
    out << "\"];\n";
    for (const GraphNode* const dependent : node->dependents)
      out << "  n" << node->handle << " -> n" << dependent->handle << ";\n";
    if (node->child) print(out, *node->child);
    if (!node->conditional) continue;
    for (const Ref<Graph>& body : node->conditional->bodies) print(out, *body);
  }
}

}  // namespace

CUDA_EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int) {
  return call_on_graph<Graph>(handle, [&](Graph& graph) {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ofstream out(path);
    out << "digraph {\n";
    print(out, graph);
    out << "}\n";
    out.flush();
    return out ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}
