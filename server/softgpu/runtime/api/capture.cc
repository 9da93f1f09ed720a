// Stream capture.
#include <algorithm>
#include <set>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool;
using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

std::atomic<uint64_t> next_capture{1};

// True if the work of all captured streams is joined: every stream's last nodes are `ends` or come before
// them.
bool joined(const Capture& capture, const std::vector<CapturedDependency>& ends) {
  std::set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const CapturedDependency& end : ends) open.push_back(end.node);
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const auto& [stream, nodes] : capture.frontier) {
    for (const CapturedDependency& end : nodes) {
      if (before.count(end.node) == 0) return false;
    }
  }
  return true;
}

CUresult begin(Stream& stream, Ref<Graph> graph, std::vector<CapturedDependency> dependencies,
               CUstreamCaptureMode mode, bool owns_graph) {
  if (stream.legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture()) return CUDA_ERROR_ILLEGAL_STATE;
  const Ref<Capture> capture =
      make_ref<Capture>(std::move(graph), mode, next_capture.fetch_add(1), &stream, owns_graph);
  capture->frontier[&stream] = std::move(dependencies);
  capture->streams.push_back(Ref<Stream>::share(&stream));
  stream.set_capture(capture);
  return CUDA_SUCCESS;
}

bool valid_mode(CUstreamCaptureMode mode) {
  return static_cast<unsigned>(mode) <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult add_dependencies(const Graph& graph, const CUgraphNode* handles, const CUgraphEdgeData* edges,
                          size_t count, std::vector<CapturedDependency>& dependencies) {
  if (count != 0 && handles == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const Ref<GraphNode> node = find<GraphNode>(handles[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    const auto edge = cuda::read_edge(edges, i, node->type, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!edge) return CUDA_ERROR_INVALID_VALUE;
    cuda::add_dependency(dependencies, node.get(), *edge);
  }
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (status == nullptr || (edges != nullptr && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->invalid) return CUDA_SUCCESS;
    Capture::ReturnedDependencies& returned = capture->returned_dependencies[&stream];
    returned.nodes.clear();
    returned.edges.clear();
    bool full = true;
    for (const CapturedDependency& before : capture->frontier[&stream]) {
      returned.nodes.push_back(make_handle<CUgraphNode>(before.node->handle));
      returned.edges.push_back(cuda::to_cuda(before.edge));
      full &= before.edge == cuda::kFullDependency;
    }
    if (dependencies != nullptr && edges == nullptr && !full) return CUDA_ERROR_LOSSY_QUERY;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = make_handle<CUgraph>(capture->graph->handle);
    if (dependencies != nullptr) *dependencies = returned.nodes.data();
    if (edges != nullptr) *edges = returned.edges.data();
    if (count != nullptr) *count = returned.nodes.size();
    return CUDA_SUCCESS;
  });
}

CUresult update_dependencies(CUstream handle, CUgraphNode* handles, const CUgraphEdgeData* edges,
                             size_t count, unsigned flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CapturedDependency>& frontier = capture->frontier[&stream];
    std::vector<CapturedDependency> nodes;
    if (flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES) nodes = frontier;
    const CUresult result = add_dependencies(*capture->graph, handles, edges, count, nodes);
    if (result == CUDA_SUCCESS) frontier = std::move(nodes);
    return result;
  });
}

}  // namespace

CUDA_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (!valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(graph_mutex());
    const Ref<Graph> graph = make_ref<Graph>();
    graph->handle = runtime().handles().add(graph);
    if (graph->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = begin(stream, graph, {}, mode, true);
    if (result != CUDA_SUCCESS) runtime().handles().remove<Graph>(graph->handle);
    return result;
  });
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                                 const CUgraphNode* dependencies,
                                                 const CUgraphEdgeData* edges, size_t count,
                                                 CUstreamCaptureMode mode) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Graph> graph = find<Graph>(graph_handle);
    if (!graph || !valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<CapturedDependency> nodes;
    const CUresult result = add_dependencies(*graph, dependencies, edges, count, nodes);
    return result != CUDA_SUCCESS ? result : begin(stream, graph, std::move(nodes), mode, false);
  });
}
#endif

CUDA_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    if (graph != nullptr) *graph = nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    // With cuStreamBeginCaptureToGraph the program has the graph already and may pass null.
    if (graph == nullptr && capture->owns_graph) return CUDA_ERROR_INVALID_VALUE;
    if (capture->origin != &stream) {
      capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const bool whole = joined(*capture, capture->frontier[&stream]);
    capture->end();
    if (capture->invalid || !whole) {
      if (capture->owns_graph) {
        runtime().handles().remove<Graph>(capture->graph->handle);
        capture->graph->clear();
      }
      return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (graph != nullptr) *graph = make_handle<CUgraph>(capture->graph->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode** dependencies,
                                               size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode** dependencies,
                                               const CUgraphEdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                                          const CUgraphEdgeData* edges, size_t count,
                                                          unsigned int flags) {
  return update_dependencies(stream, nodes, edges, count, flags);
}
#endif
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count,
                                                       unsigned int flags) {
  return update_dependencies(stream, nodes, nullptr, count, flags);
}

CUDA_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call([&] {
    if (mode == nullptr || !valid_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_capture_mode());
    return CUDA_SUCCESS;
  });
}
