// Stream capture, entirely in the client: work given to a capturing stream becomes nodes of a graph (graph.h)
// and is not sent to the server, so the worker's own operations can neither enter nor break a capture.
//
// While no stream is captured, each check costs one atomic load. Work that CUDA does not allow in a capture,
// or that cannot be forwarded, invalidates the capture and returns an error at once. Thread-safe;
// graph_mutex() guards the state.
#pragma once
#include <atomic>
#include <map>
#include <optional>
#include <span>
#include <thread>

#include "client/graphs/graph.h"

namespace gpupool::client {

using CapturedDependency = cuda::CapturedDependency<GraphNode>;

struct Capture {
  std::shared_ptr<Graph> graph;
  CUstreamCaptureMode mode{};
  uint64_t id = 0;
  uint64_t origin = 0;  // the stream that the capture began with
  std::thread::id thread;
  bool own_graph = true;  // the graph was made for this capture
  bool invalid = false;
  bool ended = false;
  // For each participating stream: the dependencies of its next operation.
  std::map<uint64_t, std::vector<CapturedDependency>> frontier;
};

namespace capture {

extern std::atomic<int> streams;  // number of streams that are being captured
extern std::atomic<int> events;   // number of events whose last record was captured

// True if any stream is being captured.
inline bool any() {
  return streams.load(std::memory_order_relaxed) != 0;
}
inline bool any_event() {
  return events.load(std::memory_order_relaxed) != 0;
}

// Returns the stream's capture; null: it is not captured. Call with graph_mutex() held.
std::shared_ptr<Capture> of(CUstream stream);

// Call begin() and end() with graph_mutex() held.
CUresult begin(CUstream stream, std::shared_ptr<Graph> graph, std::vector<CapturedDependency> nodes,
               CUstreamCaptureMode mode, bool own_graph);
void end(Capture& capture);

// True if a blocking stream of the context is being captured: legacy-stream work would order itself with it.
bool joins_null_stream(const Context& context);

std::optional<CUresult> add_node(Context& context, CUstream stream, CUgraphNodeType type,
                                 const std::function<CUresult(NodeWork&)>& make,
                                 std::span<const CUlaunchAttribute> attributes = {});
// Adds a node if the stream (resolved) is being captured. nullopt: it is not, and the caller does the work.
// Otherwise the call's result: a node with the work that `make` describes was added, or was refused.
// `attributes`: those of a launch; attributes that nodes do not have become edges.
template <class Make>
std::optional<CUresult> add(Context& context, CUstream stream, CUgraphNodeType type, Make&& make,
                            std::span<const CUlaunchAttribute> attributes = {}) {
  if (!any()) [[likely]]
    return std::nullopt;
  return add_node(context, stream, type, make, attributes);
}
// For calls that cannot be captured or that wait for the stream. If the stream is being captured, invalidates
// the capture and returns an error; else CUDA_SUCCESS.
CUresult refuse(Context& context, CUstream stream, CUresult why = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
// The same for all streams of the context.
CUresult refuse_context(const Context& context);
// For the calls that CUDA calls potentially unsafe during capture (cuThreadExchangeStreamCaptureMode). If a
// capture forbids them in this thread, invalidates that capture and returns an error.
CUresult refuse_unsafe();

// cuEventRecordWithFlags and cuStreamWaitEvent. nullopt: no capture is involved.
std::optional<CUresult> record(Context& context, CUstream stream, const Object& event, unsigned flags);
std::optional<CUresult> wait(Context& context, CUstream stream, const Object& event, unsigned flags);
// For host queries of an event: CUDA_ERROR_CAPTURED_EVENT if its last record was captured.
CUresult refuse_event(CUevent event);
// Call when the event or stream is destroyed: removes it from its capture.
void forget_event(CUevent event);
void forget_stream(CUstream stream);

}  // namespace capture

}  // namespace gpupool::client
