// Launches of executable graphs (graphs.h): as a whole, or part by part where client nodes divide the graph.
// Executor's thread.
//
// During a launch in parts, the stream has a closed gate for each client node that the client was told of, so
// the stream's later commands stay in the backlog. When the last of these gates opens, the executor gives the
// driver the next part. The executable graph is held in the backlog until the driver has all parts, and each
// event until the driver has the part that records it or waits for it.
#include <algorithm>

#include "server/worker/graphs/graphs.h"
#include "server/worker/handlers/host_function.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {

using wire::GraphNodeKind;

CUresult Graphs::launch(uint64_t executable, StreamState& stream, uint64_t command) {
  Graph* const graph = find(executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (graph->first_error != CUDA_SUCCESS) return graph->first_error;
  if (graph->parts.front().client_nodes.empty()) return launch_part(graph->parts.front(), stream);
  const auto launch = launches_.emplace_back(std::make_shared<Launch>());
  launch->graph = graph;
  launch->stream = &stream;
  launch->command = command;
  const auto last = static_cast<uint32_t>(graph->parts.size());
  launch->held.push_back({last, executable, true});
  for (const Node& node : graph->nodes) {
    const bool records = node.kind == GraphNodeKind::event_record;
    if (records || node.kind == GraphNodeKind::event_wait)
      launch->held.push_back({node.level, node.event_handle, records});
  }
  for (const Launch::Held& held : launch->held)
    held.writes ? session_.backlog.hold(held.key) : session_.backlog.hold_read(held.key);
  return launch_next_part(launch);
}

CUresult Graphs::launch_part(const Part& part, StreamState& stream) {
  if (!part.executable) return CUDA_SUCCESS;
  return session_.compute.run(stream, kernel_kind(part.executable, part.work_nodes, 0), [&] {
    return session_.timeline.measure(stream, {wire::TimelineKind::graph, part.work_nodes}, [&] {
      return session_.api.cuGraphLaunch(part.executable, stream.stream);
    });
  });
}

// Launches the next part and calls the client for the nodes of its level. The stream's context must be
// current.
CUresult Graphs::launch_next_part(const std::shared_ptr<Launch>& launch) {
  const uint32_t number = launch->next++;
  const Part& part = launch->graph->parts[number];
  CUresult result = announce_client_nodes(launch, part, false);
  if (result == CUDA_SUCCESS) result = launch_part(part, *launch->stream);
  std::erase_if(launch->held, [&](const Launch::Held& held) {
    if (held.part != number) return false;
    release(held);
    return true;
  });
  if (result == CUDA_SUCCESS) result = announce_client_nodes(launch, part, true);
  if (result != CUDA_SUCCESS || launch->unanswered == 0)
    finish(launch);
  else
    session_.compute.pause(*launch->stream);
  return result;
}

// Tells the client to execute client nodes of the part once the stream has finished its present work.
// `depends_on_part_work`: the nodes that depend on the part's own work, or else those that run beside it.
CUresult Graphs::announce_client_nodes(const std::shared_ptr<Launch>& launch, const Part& part,
                                       bool depends_on_part_work) {
  std::vector<uint64_t> callbacks;
  std::vector<std::shared_ptr<StreamGate>> gates;
  for (const uint32_t number : part.client_nodes) {
    const Node& node = launch->graph->nodes[number];
    if (node.depends_on_part_work != depends_on_part_work) continue;
    auto gate =
        session_.gates.close_by_number(*launch->stream, launch->command, "a node of a graph", node.callback,
                                       [this, launch](StreamState&) { answered(launch); });
    if (!gate) return CUDA_ERROR_INVALID_VALUE;
    launch->gates.emplace_back(node.callback, gate);
    gates.push_back(std::move(gate));
    callbacks.push_back(node.callback);
  }
  if (callbacks.empty()) return CUDA_SUCCESS;
  launch->unanswered += callbacks.size();
  const auto failed = [launch, gates = std::move(gates)] {
    launch->failed = true;
    for (const auto& gate : gates) gate->open();
  };
  return commands::call_back_when_done(session_, *launch->stream, launch->command, std::move(callbacks),
                                       failed);
}

void Graphs::answered(const std::shared_ptr<Launch>& launch) {
  if (!launch->graph) return;
  if (launch->failed) return finish(launch);
  if (--launch->unanswered != 0) return;
  launch->gates.clear();
  const CUresult result = launch_next_part(launch);
  if (result != CUDA_SUCCESS) commands::report_not_called(session_.outbox, launch->command, result);
  session_.replies.defer(result);
}

void Graphs::release(const Launch::Held& held) {
  held.writes ? session_.backlog.release(held.key) : session_.backlog.release_read(held.key);
}

void Graphs::finish(std::shared_ptr<Launch> launch) {
  launch->graph = nullptr;
  for (const Launch::Held& held : launch->held) release(held);
  for (const auto& [number, gate] : launch->gates) {
    // The next launch uses the same number, perhaps before the gates are settled.
    (void)session_.gates.take(number);
    gate->open();
  }
  launch->gates.clear();
  std::erase(launches_, launch);
}

template <class F>
void Graphs::give_up(F&& which) {
  const auto launches = launches_;
  for (const auto& launch : launches) {
    if (!which(*launch)) continue;
    commands::report_not_called(session_.outbox, launch->command, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    finish(launch);
  }
}

void Graphs::give_up_launches(const StreamState& stream) {
  give_up([&](const Launch& launch) { return launch.stream == &stream; });
}

void Graphs::give_up_launches(const ContextState& context) {
  give_up([&](const Launch& launch) { return launch.stream->context == &context; });
}

void Graphs::give_up_launches(const Graph& graph) {
  give_up([&](const Launch& launch) { return launch.graph == &graph; });
}

CUresult Graphs::upload(uint64_t executable, StreamState& stream) {
  const Graph* const graph = find(executable, true);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = CUDA_SUCCESS;
  for (const Part& part : graph->parts) {
    if (result == CUDA_SUCCESS && part.executable && session_.api.cuGraphUpload)
      result = session_.api.cuGraphUpload(part.executable, stream.stream);
  }
  return result;
}

}  // namespace gpupool::worker
