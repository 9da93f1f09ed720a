// Handlers of wire::Command, one per row of commands.def. Each reads and checks its body and does the work;
// the executor sends the reply. Executor's thread.
#pragma once
#include "server/worker/session/session.h"

namespace gpupool::worker::commands {

#define COMMAND(id, name) Outcome name(Session& session, Command& command);
#include "protocol/wire/commands.def"
#undef COMMAND

// Call when bulk_to_device is put into the backlog: prepares for its data, which may arrive before it is
// executed.
void announce_bulk_to_device(Copies& copies, const Command& command, const CommandOrder& order);

// Returns a body that must consist of exactly one T; nullopt: it has another length.
template <class T>
std::optional<T> read_exact_body(Command& command) {
  const T body = command.body.get<T>();
  if (!command.body.finished()) return std::nullopt;
  return body;
}

inline Outcome bad_body() {
  return Outcome::malformed("a command's body has the wrong length");
}

}  // namespace gpupool::worker::commands
