// Exported functions of stream capture. The state is in client/graphs/capture.h; nothing is sent to the
// server.
#include "client/graphs/capture.h"

#include <algorithm>
#include <unordered_set>

#include "protocol/driver/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

bool valid_mode(CUstreamCaptureMode mode) {
  return static_cast<unsigned>(mode) <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

// Runs `body` with the stream resolved and graph_mutex() held.
template <class Body>
CUresult on_stream(CUstream stream, Body&& body) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = require_stream(&session, &context, stream); result != CUDA_SUCCESS)
      return result;
    const std::lock_guard lock(graph_mutex());
    return body(*context, stream);
  });
}

CUresult add_dependencies(const Graph& graph, const CUgraphNode* given, const CUgraphEdgeData* edges,
                          size_t count, std::vector<CapturedDependency>& dependencies) {
  if (count != 0 && !given) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* const node = find_node(given[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    const auto edge = cuda::read_edge(edges, i, node->type, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!edge) return CUDA_ERROR_INVALID_VALUE;
    cuda::add_dependency(dependencies, node, *edge);
  }
  return CUDA_SUCCESS;
}

CUresult begin(CUstream given, CUstreamCaptureMode mode) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    if (!valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    const auto graph = std::make_shared<Graph>();
    if (publish(graph) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = capture::begin(stream, graph, {}, mode, true);
    if (result != CUDA_SUCCESS) handles().retire(graph->handle);
    return result;
  });
}

// True if the origin stream's last nodes depend on all nodes that other streams have captured.
bool is_joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const auto& end : capture.frontier.at(capture.origin)) open.push_back(end.node);
  while (!open.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    if (before.insert(node).second)
      open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return std::all_of(capture.frontier.begin(), capture.frontier.end(), [&](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(),
                       [&](const auto& end) { return !end.node->graph || before.contains(end.node); });
  });
}

CUresult end(CUstream given, CUgraph* graph) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto capture = capture::of(stream);
    if (graph) *graph = nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    // cuStreamBeginCaptureToGraph: the program has the graph already, so `graph` may be null. Otherwise null
    // is an error, as NVIDIA's driver is believed to do.
    if (!graph && capture->own_graph) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != cuda::handle_bits(stream)) {
      capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const bool whole = is_joined(*capture);
    capture::end(*capture);
    if (!capture->invalid && whole) {
      if (graph) *graph = graph_handle(*capture->graph);
      return CUDA_SUCCESS;
    }
    if (capture->own_graph) handles().retire(capture->graph->handle);
    return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  });
}

CUresult info(CUstream given, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
              const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  return on_stream(given, [&](Context& context, CUstream stream) -> CUresult {
    if (!status || (edges && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
    if (!stream && capture::joins_null_stream(context)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const auto capture = capture::of(stream);
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->invalid) return CUDA_SUCCESS;
    const auto& frontier = capture->frontier[cuda::handle_bits(stream)];
    const bool full = std::all_of(frontier.begin(), frontier.end(),
                                  [](const auto& before) { return before.edge == cuda::kFullDependency; });
    if (dependencies && !edges && !full) return CUDA_ERROR_LOSSY_QUERY;
    if (id) *id = capture->id;
    if (graph) *graph = graph_handle(*capture->graph);
    // CUDA lends the lists until the next call about the stream; one list per thread meets that.
    thread_local std::vector<CUgraphNode> returned_nodes;
    thread_local std::vector<CUgraphEdgeData> returned_edges;
    returned_nodes.clear();
    returned_edges.clear();
    for (const auto& before : frontier) {
      returned_nodes.push_back(node_handle(*before.node));
      returned_edges.push_back(cuda::to_cuda(before.edge));
    }
    if (dependencies) *dependencies = returned_nodes.data();
    if (edges) *edges = returned_edges.data();
    if (count) *count = returned_nodes.size();
    return CUDA_SUCCESS;
  });
}

CUresult update_dependencies(CUstream given, CUgraphNode* handles, const CUgraphEdgeData* edges, size_t count,
                             unsigned flags) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto capture = capture::of(stream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    auto& frontier = capture->frontier[cuda::handle_bits(stream)];
    std::vector<CapturedDependency> nodes;
    if (flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) nodes = frontier;
    const CUresult result = add_dependencies(*capture->graph, handles, edges, count, nodes);
    if (result == CUDA_SUCCESS) frontier = std::move(nodes);
    return result;
  });
}

}  // namespace

// Defines a function and its _ptsz twin, for which a null stream is the calling thread's.
#define ON_STREAM(function, parameters, arguments, body)                              \
  CUDA_EXPORT CUresult function(CUstream stream STREAM_ARGUMENTS parameters) {        \
    return body;                                                                      \
  }                                                                                   \
  CUDA_EXPORT CUresult function##_ptsz(CUstream stream STREAM_ARGUMENTS parameters) { \
    return function(or_per_thread(stream) STREAM_ARGUMENTS arguments);                \
  }
#define STREAM_ARGUMENTS(...) __VA_OPT__(, ) __VA_ARGS__

ON_STREAM(cuStreamBeginCapture_v2, (CUstreamCaptureMode mode), (mode), begin(stream, mode))
ON_STREAM(cuStreamEndCapture, (CUgraph * graph), (graph), end(stream, graph))
ON_STREAM(cuStreamGetCaptureInfo_v2,
          (CUstreamCaptureStatus * status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
           size_t* count),
          (status, id, graph, dependencies, count),
          info(stream, status, id, graph, dependencies, nullptr, count))
ON_STREAM(cuStreamUpdateCaptureDependencies, (CUgraphNode * nodes, size_t count, unsigned int flags),
          (nodes, count, flags), update_dependencies(stream, nodes, nullptr, count, flags))

#if CUDA_VERSION >= 12030
namespace {

CUresult begin_to_graph(CUstream given, CUgraph handle, const CUgraphNode* dependencies,
                        const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto graph = share_graph(handle);
    if (!graph || !valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CapturedDependency> nodes;
    if (const CUresult result = add_dependencies(*graph, dependencies, edges, count, nodes);
        result != CUDA_SUCCESS)
      return result;
    return capture::begin(stream, graph, std::move(nodes), mode, false);
  });
}

}  // namespace

ON_STREAM(cuStreamBeginCaptureToGraph,
          (CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
           CUstreamCaptureMode mode),
          (graph, dependencies, edges, count, mode),
          begin_to_graph(stream, graph, dependencies, edges, count, mode))
ON_STREAM(cuStreamGetCaptureInfo_v3,
          (CUstreamCaptureStatus * status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
           const CUgraphEdgeData** edges, size_t* count),
          (status, id, graph, dependencies, edges, count),
          info(stream, status, id, graph, dependencies, edges, count))
ON_STREAM(cuStreamUpdateCaptureDependencies_v2,
          (CUgraphNode * nodes, const CUgraphEdgeData* edges, size_t count, unsigned int flags),
          (nodes, edges, count, flags), update_dependencies(stream, nodes, edges, count, flags))
#endif

CUDA_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!mode || !valid_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_state().capture_mode);
    return CUDA_SUCCESS;
  });
}
