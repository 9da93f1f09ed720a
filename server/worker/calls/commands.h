// The handlers of wire::Command, one per row of commands.def. Each reads its body, checks it and does its part; the
// executor replies. Called on the executor's thread.
#pragma once
#include "server/worker/executor.h"

namespace gpupool::worker::commands {

#define COMMAND(id, name) Outcome name(Executor& session, Command& command);
#include "protocol/wire/commands.def"
#undef COMMAND

// bulk_to_device goes to the backlog: its data may come all the same.
void announce_bulk_to_device(Executor& session, const Command& command, const CommandOrder& order);

// A command whose body is exactly one T.
template <class T>
std::optional<T> only(Command& command) {
  const T body = command.body.get<T>();
  if (!command.body.finished()) return std::nullopt;
  return body;
}

inline Outcome bad_body() { return Outcome::malformed("a command's body has the wrong length"); }

}  // namespace gpupool::worker::commands
