// Stream capture. It is the client's alone: what a capturing stream is given becomes a node of a graph (graph.h), and the server hears
// nothing of it, so that nothing that the worker does beside a command can get into a capture or break one.
//
// While nothing is captured, a call that asks costs a load. What a capture does not allow, or what cannot be forwarded, invalidates it and gives an
// error at once. Any thread.
#pragma once
#include <atomic>
#include <map>
#include <optional>
#include <span>
#include <thread>

#include "client/graph.h"

namespace gpupool::client {

using CapturedDependency = cuda::CapturedDependency<GraphNode>;

struct Capture {
  std::shared_ptr<Graph> graph;
  CUstreamCaptureMode mode{};
  uint64_t id = 0;
  uint64_t origin = 0;  // the stream that it began with
  std::thread::id thread;
  bool own_graph = true;  // made for it
  bool invalid = false;
  bool ended = false;
  // What a stream's next operation depends on, for each stream that takes part.
  std::map<uint64_t, std::vector<CapturedDependency>> frontier;
};

namespace capture {

extern std::atomic<int> streams;  // that are captured
extern std::atomic<int> events;   // whose last record was captured

// Is any stream captured?
inline bool any() { return streams.load(std::memory_order_relaxed) != 0; }
inline bool any_event() { return events.load(std::memory_order_relaxed) != 0; }

// With graph_mutex() held. Null: it is not captured.
std::shared_ptr<Capture> of(CUstream stream);

// With graph_mutex() held.
CUresult begin(CUstream stream, std::shared_ptr<Graph> graph, std::vector<CapturedDependency> nodes, CUstreamCaptureMode mode, bool own_graph);
void end(Capture& capture);

// The context's null stream would wait for captured work, and captured work for it.
bool joins_null_stream(const Context& context);

std::optional<CUresult> add_node(Context& context, CUstream stream, CUgraphNodeType type, const std::function<CUresult(NodeWork&)>& make,
                                 std::span<const CUlaunchAttribute> attributes = {});
// The stream (resolved) gets work of this type. nullopt: it is not captured, and gets it from the caller. Otherwise the result:
// a node was added that does what `make` says, or was refused.
// `attributes`: of a launch; those that nodes do not have become edges.
template <class Make>
std::optional<CUresult> add(Context& context, CUstream stream, CUgraphNodeType type, Make&& make, std::span<const CUlaunchAttribute> attributes = {}) {
  if (!any()) [[likely]] return std::nullopt;
  return add_node(context, stream, type, make, attributes);
}
// The stream is to do what cannot be captured, or is to be waited for. CUDA_SUCCESS: it is not captured.
CUresult refuse(Context& context, CUstream stream, CUresult why = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
// The same for all streams of the context.
CUresult refuse_context(const Context& context);
// A call that CUDA counts among the unsafe ones: may this thread do it now? (cuThreadExchangeStreamCaptureMode)
CUresult refuse_unsafe();

// cuEventRecordWithFlags and cuStreamWaitEvent. nullopt: no capture has to do with it.
std::optional<CUresult> record(Context& context, CUstream stream, const Object& event, unsigned flags);
std::optional<CUresult> wait(Context& context, CUstream stream, const Object& event, unsigned flags);
// The event is to be looked at by the host.
CUresult refuse_event(CUevent event);
// Gone: what it was in a capture is forgotten.
void forget_event(CUevent event);
void forget_stream(CUstream stream);

}  // namespace capture

// client/calls/stream.cc: does it wait for the null stream, and the null stream for it?
bool is_blocking(uint64_t stream);

}  // namespace gpupool::client
