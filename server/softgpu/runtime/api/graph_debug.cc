// cuGraphDebugDotPrint: writes a graph in the DOT language.
#include <fstream>

#include "protocol/calls/graph_dot.h"
#include "server/softgpu/runtime/api/graph.h"
#include "server/softgpu/runtime/module.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

void print(std::ofstream& out, const Graph& graph, unsigned flags) {
  for (const Ref<GraphNode>& node : graph.nodes) {
    out << "  n" << node->handle << " [label=\"" << gpupool::cuda::dot_name(node->type);
    if (const auto* const grid = dynamic_cast<const GridOp*>(node->prototype.get())) {
      out << "\\n" << grid->function().kernel().name;
      const GridRequest& request = grid->request();
      gpupool::cuda::print_launch(out, flags, request.grid_dim, request.block_dim,
                                  request.dynamic_shared_bytes);
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
