// Stream capture (client/capture.h): all of it is the client's.
#include "client/capture.h"

#include <algorithm>
#include <unordered_set>

#include "protocol/cuda/exports.h"

using namespace gpupool;
using namespace gpupool::client;

namespace {

bool valid_mode(CUstreamCaptureMode mode) { return static_cast<unsigned>(mode) <= CU_STREAM_CAPTURE_MODE_RELAXED; }

// With the stream resolved and graph_mutex() held.
template <class Body>
CUresult on_stream(CUstream stream, Body&& body) {
  return guarded([&]() -> CUresult {
    Session* session = nullptr;
    Context* context = nullptr;
    if (const CUresult result = ready_with_stream(&session, &context, stream); result != CUDA_SUCCESS) return result;
    const std::lock_guard lock(graph_mutex());
    return body(*context, stream);
  });
}

CUresult find_nodes(const Graph& graph, const CUgraphNode* given, size_t count, std::vector<GraphNode*>& nodes) {
  if (count != 0 && !given) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    GraphNode* const node = find_node(given[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node);
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

// Is everything that the capture's other streams did before what the first one did last?
bool is_joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> before;
  const auto& ends = capture.frontier.at(capture.origin);
  std::vector<const GraphNode*> open(ends.begin(), ends.end());
  while (!open.empty()) {
    const GraphNode* const node = open.back();
    open.pop_back();
    if (before.insert(node).second) open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return std::all_of(capture.frontier.begin(), capture.frontier.end(), [&](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(), [&](const GraphNode* node) { return !node->graph || before.contains(node); });
  });
}

CUresult end(CUstream given, CUgraph* graph) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto capture = capture::of(stream);
    // Whoever captured into a graph has it already (cuStreamBeginCaptureToGraph); a null graph is believed to be an error otherwise.
    if (!graph && (!capture || capture->own_graph)) return CUDA_ERROR_INVALID_VALUE;
    if (graph) *graph = nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
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

CUresult info(CUstream given, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return on_stream(given, [&](Context& context, CUstream stream) -> CUresult {
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (!stream && capture::joins_null_stream(context)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const auto capture = capture::of(stream);
    *status = !capture ? CU_STREAM_CAPTURE_STATUS_NONE : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->invalid) return CUDA_SUCCESS;
    if (id) *id = capture->id;
    if (graph) *graph = graph_handle(*capture->graph);
    // CUDA lends the list until the next call about the stream; a list per thread lives as long.
    thread_local std::vector<CUgraphNode> lent;
    lent.clear();
    for (const GraphNode* const node : capture->frontier[cuda::handle_bits(stream)]) lent.push_back(node_handle(*node));
    if (dependencies) *dependencies = lent.data();
    if (count) *count = lent.size();
    return CUDA_SUCCESS;
  });
}

CUresult update_dependencies(CUstream given, CUgraphNode* handles, size_t count, unsigned flags) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto capture = capture::of(stream);
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> nodes;
    if (const CUresult result = find_nodes(*capture->graph, handles, count, nodes); result != CUDA_SUCCESS) return result;
    auto& frontier = capture->frontier[cuda::handle_bits(stream)];
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) frontier.clear();
    for (GraphNode* const node : nodes) {
      if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) frontier.push_back(node);
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

// A function and its twin, in which the null stream is the calling thread's.
#define ON_STREAM(function, parameters, arguments, body)                              \
  CUDA_EXPORT CUresult function(CUstream stream STREAM_ARGUMENTS parameters) { return body; } \
  CUDA_EXPORT CUresult function##_ptsz(CUstream stream STREAM_ARGUMENTS parameters) { return function(or_per_thread(stream) STREAM_ARGUMENTS arguments); }
#define STREAM_ARGUMENTS(...) __VA_OPT__(, ) __VA_ARGS__

ON_STREAM(cuStreamBeginCapture, (), (), begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
ON_STREAM(cuStreamBeginCapture_v2, (CUstreamCaptureMode mode), (mode), begin(stream, mode))
ON_STREAM(cuStreamEndCapture, (CUgraph* graph), (graph), end(stream, graph))
ON_STREAM(cuStreamIsCapturing, (CUstreamCaptureStatus* status), (status), info(stream, status, nullptr, nullptr, nullptr, nullptr))
ON_STREAM(cuStreamGetCaptureInfo, (CUstreamCaptureStatus* status, cuuint64_t* id), (status, id),
          info(stream, status, id, nullptr, nullptr, nullptr))
ON_STREAM(cuStreamGetCaptureInfo_v2,
          (CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies, size_t* count),
          (status, id, graph, dependencies, count), info(stream, status, id, graph, dependencies, count))
ON_STREAM(cuStreamUpdateCaptureDependencies, (CUgraphNode* nodes, size_t count, unsigned int flags), (nodes, count, flags),
          update_dependencies(stream, nodes, count, flags))

#if CUDA_VERSION >= 12030
namespace {

CUresult begin_to_graph(CUstream given, CUgraph handle, const CUgraphNode* dependencies, size_t count, CUstreamCaptureMode mode) {
  return on_stream(given, [&](Context&, CUstream stream) -> CUresult {
    const auto graph = share_graph(handle);
    if (!graph || !valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> nodes;
    if (const CUresult result = find_nodes(*graph, dependencies, count, nodes); result != CUDA_SUCCESS) return result;
    return capture::begin(stream, graph, std::move(nodes), mode, false);
  });
}

CUresult info_with_edges(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                         const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  if (edges) *edges = nullptr;  // all edges are plain
  return info(stream, status, id, graph, dependencies, count);
}

}  // namespace

ON_STREAM(cuStreamBeginCaptureToGraph,
          (CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode),
          (graph, dependencies, edges, count, mode), begin_to_graph(stream, graph, dependencies, count, mode))
ON_STREAM(cuStreamGetCaptureInfo_v3,
          (CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
           const CUgraphEdgeData** edges, size_t* count),
          (status, id, graph, dependencies, edges, count), info_with_edges(stream, status, id, graph, dependencies, edges, count))
ON_STREAM(cuStreamUpdateCaptureDependencies_v2, (CUgraphNode* nodes, const CUgraphEdgeData* edges, size_t count, unsigned int flags),
          (nodes, edges, count, flags), update_dependencies(stream, nodes, count, flags))
#endif

CUDA_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return guarded([&]() -> CUresult {
    if (const CUresult result = ready(); result != CUDA_SUCCESS) return result;
    if (!mode || !valid_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_state().capture_mode);
    return CUDA_SUCCESS;
  });
}
