// The source's side of a migration: sends the session to the target, as commands. The session stays as it is.
// Executor's thread, between two commands.
#pragma once
#include <cstdint>
#include <string>

#include "protocol/transport/transport.h"

namespace gpupool::worker {

class Session;

// Waits until the session has no work on the device and nothing to send. Returns false if it still has after
// `longest`, or if it is over.
bool await_idle(Session& session, transport::Clock::duration longest);

// What of the session cannot migrate; null: nothing.
const char* migration_obstacle(Session& session);

// Sends everything, with `sequence` as the number of the last command, and waits for the target's answer.
// Returns the reason if the target does not have all of it.
Result<void> depart(Session& session, transport::Connection& target, uint64_t sequence);

}  // namespace gpupool::worker
