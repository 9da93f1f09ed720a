// Stream capture.
#include <algorithm>
#include <set>

#include "server/softgpu/runtime/api/call.h"
#include "server/softgpu/runtime/graph.h"

using namespace gpupool::softgpu;
using namespace gpupool::softgpu::api;

namespace {

std::atomic<uint64_t> next_capture{1};

// Whether everything that the capture's other streams did is before the nodes.
bool joined(const Capture& capture, const std::vector<GraphNode*>& ends) {
  std::set<const GraphNode*> before;
  std::vector<const GraphNode*> open(ends.begin(), ends.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (!before.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const auto& [stream, nodes] : capture.frontier) {
    for (const GraphNode* node : nodes) {
      if (before.count(node) == 0) return false;
    }
  }
  return true;
}

CUresult begin(Stream& stream, Ref<Graph> graph, std::vector<GraphNode*> dependencies,
               CUstreamCaptureMode mode, bool own_graph) {
  if (stream.legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream.capture()) return CUDA_ERROR_ILLEGAL_STATE;
  const Ref<Capture> capture = make_ref<Capture>(std::move(graph), mode, next_capture.fetch_add(1), &stream, own_graph);
  capture->frontier[&stream] = std::move(dependencies);
  capture->streams.push_back(Ref<Stream>::share(&stream));
  stream.set_capture(capture);
  return CUDA_SUCCESS;
}

bool valid_mode(CUstreamCaptureMode mode) {
  return static_cast<unsigned>(mode) <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult find_nodes(const Graph& graph, const CUgraphNode* handles, size_t count,
                    std::vector<GraphNode*>* nodes) {
  if (count != 0 && handles == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const Ref<GraphNode> node = find<GraphNode>(handles[i]);
    if (!node || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    nodes->push_back(node.get());
  }
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, size_t* count) {
  return call_on_stream(handle, [&](Stream& stream) {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->invalid) return CUDA_SUCCESS;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = make_handle<CUgraph>(capture->graph->handle);
    // CUDA lends the list until the next call about the stream; a list per thread lives as long.
    thread_local std::vector<CUgraphNode> lent;
    lent.clear();
    for (const GraphNode* node : capture->frontier[&stream])
      lent.push_back(make_handle<CUgraphNode>(node->handle));
    if (dependencies != nullptr) *dependencies = lent.data();
    if (count != nullptr) *count = lent.size();
    return CUDA_SUCCESS;
  });
}

CUresult update_dependencies(CUstream handle, CUgraphNode* handles, size_t count, unsigned flags) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> nodes;
    const CUresult result = find_nodes(*capture->graph, handles, count, &nodes);
    if (result != CUDA_SUCCESS) return result;
    std::vector<GraphNode*>& frontier = capture->frontier[&stream];
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) frontier.clear();
    for (GraphNode* node : nodes) {
      if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) frontier.push_back(node);
    }
    return CUDA_SUCCESS;
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
CUDA_EXPORT CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                                 const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                                 size_t count, CUstreamCaptureMode mode) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Graph> graph = find<Graph>(graph_handle);
    if (!graph || !valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode*> nodes;
    const CUresult result = find_nodes(*graph, dependencies, count, &nodes);
    return result != CUDA_SUCCESS ? result : begin(stream, graph, std::move(nodes), mode, false);
  });
}
#endif

CUDA_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return call_on_stream(handle, [&](Stream& stream) {
    std::lock_guard guard(graph_mutex());
    const Ref<Capture> capture = stream.capture();
    // Whoever captured into a graph has it already (cuStreamBeginCaptureToGraph).
    if (graph == nullptr && (!capture || capture->own_graph)) return CUDA_ERROR_INVALID_VALUE;
    if (graph != nullptr) *graph = nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
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
      if (capture->own_graph) {
        runtime().handles().remove<Graph>(capture->graph->handle);
        capture->graph->clear();
      }
      return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (graph != nullptr) *graph = make_handle<CUgraph>(capture->graph->handle);
    return CUDA_SUCCESS;
  });
}

CUDA_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return capture_info(stream, status, nullptr, nullptr, nullptr, nullptr);
}
CUDA_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(stream, status, id, nullptr, nullptr, nullptr);
}
CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode** dependencies,
                                               size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}
#if CUDA_VERSION >= 12030
CUDA_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode** dependencies,
                                               const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;  // all edges are plain
  return capture_info(stream, status, id, graph, dependencies, count);
}
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                                          const CUgraphEdgeData*, size_t count,
                                                          unsigned int flags) {
  return update_dependencies(stream, nodes, count, flags);
}
#endif
CUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count,
                                                       unsigned int flags) {
  return update_dependencies(stream, nodes, count, flags);
}

CUDA_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call([&] {
    if (mode == nullptr || !valid_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_capture_mode());
    return CUDA_SUCCESS;
  });
}
