#include "server/worker/session/dump.h"

#include "protocol/control/dump.pb.h"
#include "server/worker/session/session.h"

namespace gpupool::worker {
namespace {

using server::ControlKind;

void describe(const CurrentCommand& current_command, admin::ExecutorDump& executor) {
  const CurrentCommand::Command command = current_command.command();
  if (command.sequence == 0) return;
  executor.set_command(command_name(command.id));
  executor.set_context(command.context);
  if (command.stream != CurrentCommand::kNoStream) executor.set_stream(command.stream);
  if (const char* const function = current_command.driver_function()) executor.set_driver_function(function);
  if (const char* const waits_for = current_command.waits_for()) executor.set_waits_for(waits_for);
  executor.set_age_ms(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(current_command.age()).count()));
}

}  // namespace

std::string dump(Session& session) {
  admin::WorkerDump dump;
  describe(session.current_command, *dump.mutable_executor());
  dump.set_received(session.current_command.received());
  dump.set_executed(session.current_command.executed());
  session.backlog.describe(dump);
  session.gates.describe(dump);
  session.copies.bulk.describe(dump);
  session.waits.describe(dump);
  session.copies.connections.describe(dump);
  session.copies.staging.describe(dump);
  session.compute.describe(dump);
  dump.set_pieces_to_client(session.copies.small.pending());
  if (session.copies.small.sending()) dump.add_busy_locks("copies to the client");
  if (session.outbox.sending()) dump.add_busy_locks("messages to the client");
  if (session.memory.busy()) dump.add_busy_locks("device memory");
  dump.set_deferred_error(session.replies.deferred());
  return dump.SerializeAsString();
}

DumpServer::DumpServer(Session& session) : session_(session) {
  if (!session.start.control) return;
  session.start.control->handle(ControlKind::dump_wanted, [&session](const server::ControlMessage& message) {
    // poold reports a missing answer
    (void)session.start.control->send<ControlKind::dump>(message.body<server::packet::DumpQuestion>(),
                                                         dump(session));
  });
}

DumpServer::~DumpServer() {
  if (session_.start.control) session_.start.control->handle(ControlKind::dump_wanted, nullptr);
}

}  // namespace gpupool::worker
