// Handlers for graphs: describing, instantiating, updating and launching them (graphs.h).
#include "protocol/wire/graphs.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {
namespace {

Outcome with_result(Replies& replies, CUresult outcome, const wire::GraphResult& result) {
  wire::Writer(replies.body).put(result);
  return outcome;
}

// Calls `work` with the stream of a launch, whose context is current.
template <class F>
Outcome on_stream(Session& session, Command& command, F&& work) {
  const auto body = read_exact_body<wire::LaunchGraph>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(stream->context);
  return work(body->executable, *stream);
}

}  // namespace

Outcome graph_nodes(Session& session, Command& command) {
  const auto head = command.body.get<wire::GraphNodes>();
  if (!command.body.ok()) return bad_body();
  if (!session.graphs.add(head, command.body)) return Outcome::malformed("an invalid graph");
  return CUDA_SUCCESS;
}

Outcome instantiate_graph(Session& session, Command& command) {
  const auto body = read_exact_body<wire::InstantiateGraph>(command);
  if (!body) return bad_body();
  if (!session.contexts.enter_named(command.header.context)) return CUDA_ERROR_INVALID_CONTEXT;
  wire::GraphResult result{wire::kGraphInstantiateError, wire::kNoGraphNode};
  const CUresult outcome = session.graphs.instantiate(*body, result);
  return with_result(session.replies, outcome, result);
}

Outcome update_graph(Session& session, Command& command) {
  const auto body = read_exact_body<wire::UpdateGraph>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  wire::GraphResult result{CU_GRAPH_EXEC_UPDATE_ERROR, wire::kNoGraphNode};
  const CUresult outcome = session.graphs.update(*body, result, !command.wants_reply());
  return with_result(session.replies, outcome, result);
}

Outcome set_graph_node(Session& session, Command& command) {
  const auto head = command.body.get<wire::SetGraphNode>();
  const auto result = session.graphs.set(head, command.body);
  return result ? Outcome(*result) : bad_body();
}

Outcome enable_graph_node(Session& session, Command& command) {
  const auto body = read_exact_body<wire::SetGraphNode>(command);
  if (!body || body->enabled > 1) return bad_body();
  return session.graphs.enable(*body);
}

Outcome launch_graph(Session& session, Command& command) {
  return on_stream(session, command, [&](uint64_t executable, StreamState& stream) {
    return session.graphs.launch(executable, stream, command.header.sequence);
  });
}

Outcome upload_graph(Session& session, Command& command) {
  return on_stream(session, command, [&](uint64_t executable, StreamState& stream) {
    return session.graphs.upload(executable, stream);
  });
}

Outcome destroy_graph(Session& session, Command& command) {
  const auto body = read_exact_body<wire::DestroyGraph>(command);
  if (!body) return bad_body();
  return session.graphs.destroy(body->executable);
}

}  // namespace gpupool::worker::commands
