#include "server/worker/handlers/host_function.h"

#include <utility>

#include "protocol/wire/commands.h"
#include "server/worker/handlers/commands.h"

namespace gpupool::worker::commands {

CUresult call_back_when_done(Session& session, StreamState& stream, uint64_t command,
                             std::vector<uint64_t> callbacks, std::function<void()> failed) {
  // Earlier output and data of the stream must reach the client before it calls the function.
  const auto tell = [&session, command, callbacks = std::move(callbacks)] {
    session.replies.publish();
    for (const uint64_t callback : callbacks)
      session.outbox.send(wire::MessageKind::host_callback, 0, command,
                          std::as_bytes(std::span(&callback, 1)));
  };
  if (session.stream_work.is_idle(stream)) {
    session.stream_work.fetch_output(stream);
    tell();
    return CUDA_SUCCESS;
  }
  const bool parked = session.stream_work.when_done(stream, "the stream to reach a host function",
                                                    [&session, command, tell, failed](CUresult result) {
                                                      if (result == CUDA_SUCCESS) return tell();
                                                      report_not_called(session.outbox, command, result);
                                                      failed();
                                                    });
  if (parked) return CUDA_SUCCESS;
  failed();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

bool has_host_functions(uint16_t command) {
  return command == static_cast<uint16_t>(wire::Command::host_function) ||
         command == static_cast<uint16_t>(wire::Command::launch_graph);
}

void report_not_called(Outbox& outbox, uint64_t command, CUresult why) {
  constexpr uint64_t kNone = 0;
  outbox.send(wire::MessageKind::host_callback, why, command, std::as_bytes(std::span(&kNone, 1)));
}

Outcome host_function(Session& session, Command& command) {
  const auto body = read_exact_body<wire::HostFunction>(command);
  if (!body) return bad_body();
  session.contexts.enter_named(command.header.context);
  StreamState* const stream = session.table.use_stream(body->stream);
  if (!stream) return session.contexts.current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  session.contexts.enter(stream->context);
  const auto gate =
      session.gates.close_by_number(*stream, command.header.sequence, "a host function", body->callback);
  if (!gate) return CUDA_ERROR_INVALID_VALUE;
  return call_back_when_done(session, *stream, command.header.sequence, {body->callback},
                             [gate] { gate->open(); });
}

Outcome host_function_done(Session& session, Command& command) {
  const auto body = read_exact_body<wire::HostFunctionDone>(command);
  if (!body) return bad_body();
  const auto gate = session.gates.take(body->callback);
  if (!gate) return CUDA_SUCCESS;  // the context was destroyed, or the launch of the graph has failed
  // The function's copies are already queued in `copies`, so the stream waits for them on the device, not on
  // the CPU.
  if (StreamState* const copies = body->stream ? session.table.find_stream(body->stream) : nullptr) {
    session.contexts.order_after(StreamGates::stream_of(*gate), *copies);
  }
  gate->open();
  return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::commands
