#include "client/graphs/capture.h"

#include <algorithm>
#include <unordered_map>

#include "client/streams/stream.h"

namespace gpupool::client::capture {

constinit std::atomic<int> streams{0};
constinit std::atomic<int> events{0};

namespace {

struct CapturedEvent {
  std::shared_ptr<Capture> capture;
  std::vector<CapturedDependency> nodes;
};

// Guarded by graph_mutex().
struct Captures {
  std::unordered_map<uint64_t, std::shared_ptr<Capture>> streams;
  std::unordered_map<uint64_t, CapturedEvent> events;
};
Captures& captures() {
  static Captures* const only = new Captures;
  return *only;
}

void count() {
  streams.store(static_cast<int>(captures().streams.size()));
  events.store(static_cast<int>(captures().events.size()));
}

const Object* stream_object(uint64_t stream) {
  return handles().find(Kind::stream, stream);
}

void invalidate_blocking(const Context& context) {
  for (const auto& [handle, capture] : captures().streams) {
    const Object* const stream = stream_object(handle);
    if (stream && stream->context == context.handle && is_blocking(handle)) capture->invalid = true;
  }
}

// Appends a node behind the stream's frontier; null: the handle table is full.
GraphNode* append(Capture& capture, CUstream stream, CUgraphNodeType type, const Context& context,
                  NodeWork work) {
  auto& frontier = capture.frontier[cuda::handle_bits(stream)];
  GraphNode* const node = capture.graph->add(type, context.handle, std::move(work), {});
  if (!node) return nullptr;
  for (const auto& before : frontier) Graph::connect(*before.node, *node, cuda::captured_edge(before, type));
  frontier = {{node, {}, true}};
  return node;
}

// On GPUs below compute capability 9.0, programmatic dependencies are captured as full dependencies.
bool has_programmatic_edges(const Device& device) {
  const auto major = device.attributes.find(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  return major != device.attributes.end() && major->second >= 9;
}

// Checks that the events recorded by a launch can be captured.
CUresult check_events(const Context& context, std::span<const CUlaunchAttribute> attributes) {
  for (const CUlaunchAttribute& attribute : attributes) {
    const auto recorded = cuda::launch_event(attribute);
    if (!recorded) continue;
    const Object* const event = handles().find(Kind::event, cuda::handle_bits(recorded->event));
    if (!event || event->context != context.owner().handle) return CUDA_ERROR_INVALID_HANDLE;
    if (recorded->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool joins_null_stream(const Context& context) {
  return std::any_of(captures().streams.begin(), captures().streams.end(), [&](const auto& entry) {
    const Object* const stream = stream_object(entry.first);
    return stream && stream->context == context.handle && is_blocking(entry.first);
  });
}

std::shared_ptr<Capture> of(CUstream stream) {
  const auto found = captures().streams.find(cuda::handle_bits(stream));
  return found == captures().streams.end() ? nullptr : found->second;
}

std::optional<CUresult> add_node(Context& context, CUstream stream, CUgraphNodeType type,
                                 const std::function<CUresult(NodeWork&)>& make,
                                 std::span<const CUlaunchAttribute> attributes) {
  const std::lock_guard lock(graph_mutex());
  if (!stream) {
    if (!joins_null_stream(context)) return std::nullopt;
    invalidate_blocking(context);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const auto capture = of(stream);
  if (!capture) return std::nullopt;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  NodeWork work;
  CUresult result = check_events(context, attributes);
  if (result == CUDA_SUCCESS) result = make(work);
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
      capture->invalid = true;
    return result;
  }
  const bool programmatic = !attributes.empty() && has_programmatic_edges(*context.device);
  if (programmatic && std::any_of(attributes.begin(), attributes.end(), cuda::serializes_programmatically)) {
    cuda::serialize_programmatically(capture->frontier[cuda::handle_bits(stream)]);
  }
  GraphNode* const node = append(*capture, stream, type, context, std::move(work));
  if (!node) {
    capture->invalid = true;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (const CUlaunchAttribute& attribute : attributes) {
    const auto recorded = cuda::launch_event(attribute);
    if (recorded)
      captures().events[cuda::handle_bits(recorded->event)] = {
          capture, {{node, programmatic ? recorded->edge : cuda::kFullDependency}}};
  }
  count();
  return CUDA_SUCCESS;
}

CUresult refuse(Context& context, CUstream stream, CUresult why) {
  if (!any()) [[likely]]
    return CUDA_SUCCESS;
  const std::lock_guard lock(graph_mutex());
  if (!stream) {
    if (!joins_null_stream(context)) return CUDA_SUCCESS;
    invalidate_blocking(context);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const auto capture = of(stream);
  if (!capture) return CUDA_SUCCESS;
  const bool was_invalid = std::exchange(capture->invalid, true);
  return was_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : why;
}

CUresult refuse_context(const Context& context) {
  if (!any()) [[likely]]
    return CUDA_SUCCESS;
  const std::lock_guard lock(graph_mutex());
  CUresult result = CUDA_SUCCESS;
  for (const auto& [handle, capture] : captures().streams) {
    const Object* const stream = stream_object(handle);
    if (!stream || stream->context != context.handle) continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult refuse_unsafe() {
  if (!any()) [[likely]]
    return CUDA_SUCCESS;
  const CUstreamCaptureMode mine = thread_state().capture_mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(graph_mutex());
  CUresult result = CUDA_SUCCESS;
  for (const auto& [handle, capture] : captures().streams) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    const bool global =
        mine == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

std::optional<CUresult> record(Context& context, CUstream stream, const Object& event, unsigned flags) {
  if (!any() && !any_event()) [[likely]]
    return std::nullopt;
  const std::lock_guard lock(graph_mutex());
  if (!stream && joins_null_stream(context)) {
    invalidate_blocking(context);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  const auto capture = of(stream);
  if (!capture) {  // an ordinary record replaces the captured one
    captures().events.erase(event.handle);
    count();
    return std::nullopt;
  }
  if (flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  if (event.context != context.owner().handle) return CUDA_ERROR_INVALID_HANDLE;
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags == CU_EVENT_RECORD_EXTERNAL) {
    return append(*capture, stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, context, EventWork{event.handle})
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
  }
  captures().events[event.handle] = {capture, capture->frontier[cuda::handle_bits(stream)]};
  count();
  return CUDA_SUCCESS;
}

std::optional<CUresult> wait(Context& context, CUstream stream, const Object& event, unsigned flags) {
  if (!any() && !any_event()) [[likely]]
    return std::nullopt;
  const std::lock_guard lock(graph_mutex());
  if (flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) return std::nullopt;
  const auto mine = of(stream);
  const auto found = captures().events.find(event.handle);
  const auto theirs = found == captures().events.end() ? nullptr : found->second.capture;
  if (theirs && !theirs->ended && !(mine && mine != theirs)) {
    // The stream joins the capture, behind the captured event.
    if (!stream) {
      theirs->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (theirs->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (event.session != context.session) {
      theirs->invalid = true;
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    captures().streams.try_emplace(cuda::handle_bits(stream), theirs);
    count();
    auto& known = theirs->frontier[cuda::handle_bits(stream)];
    for (const auto& before : found->second.nodes) {
      if (before.node->graph) cuda::add_dependency(known, before.node, before.edge);
    }
    return CUDA_SUCCESS;
  }
  if (!mine) {
    if (stream || !joins_null_stream(context)) return std::nullopt;
    invalidate_blocking(context);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (mine->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (theirs && !theirs->ended) {
    mine->invalid = theirs->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (flags != CU_EVENT_WAIT_EXTERNAL || event.session != context.session) {
    mine->invalid = true;
    return flags == CU_EVENT_WAIT_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  return append(*mine, stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, context, EventWork{event.handle})
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult refuse_event(CUevent event) {
  if (!any_event()) [[likely]]
    return CUDA_SUCCESS;
  const std::lock_guard lock(graph_mutex());
  return captures().events.contains(cuda::handle_bits(event)) ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

void forget_event(CUevent event) {
  if (!any_event()) [[likely]]
    return;
  const std::lock_guard lock(graph_mutex());
  captures().events.erase(cuda::handle_bits(event));
  count();
}

void forget_stream(CUstream stream) {
  if (!any()) [[likely]]
    return;
  const std::lock_guard lock(graph_mutex());
  const auto capture = of(stream);
  if (!capture) return;
  if (capture->origin == cuda::handle_bits(stream)) {
    capture->invalid = true;
    end(*capture);  // its origin is destroyed, so no call can end it
  } else {
    captures().streams.erase(cuda::handle_bits(stream));  // its frontier stays: its work must still be joined
    count();
  }
}

CUresult begin(CUstream stream, std::shared_ptr<Graph> graph, std::vector<CapturedDependency> nodes,
               CUstreamCaptureMode mode, bool own_graph) {
  static uint64_t last_id = 0;
  if (!stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  auto made = std::make_shared<Capture>();
  made->graph = std::move(graph);
  made->mode = mode;
  made->id = ++last_id;
  made->origin = cuda::handle_bits(stream);
  made->thread = std::this_thread::get_id();
  made->own_graph = own_graph;
  made->frontier[made->origin] = std::move(nodes);
  captures().streams[made->origin] = std::move(made);
  count();
  return CUDA_SUCCESS;
}

void end(Capture& capture) {
  capture.ended = true;
  std::erase_if(captures().streams, [&](const auto& entry) { return entry.second.get() == &capture; });
  count();
}

}  // namespace gpupool::client::capture
