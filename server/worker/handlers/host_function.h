// Tells the client to call host functions: those in streams, and client nodes of graphs. Executor's thread,
// except report_not_called().
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "server/worker/session/session.h"

namespace gpupool::worker::commands {

// Tells the client to call the functions when the stream, whose context must be current, has done its present
// work. If that work fails, no function is called, as in CUDA: tells the client so and calls `failed`, on any
// thread. Also calls `failed` before returning an error. `command`: sequence number of the command with these
// functions.
CUresult call_back_when_done(Session& session, StreamState& stream, uint64_t command,
                             std::vector<uint64_t> callbacks, std::function<void()> failed);

// True for commands with functions that the client expects to be told about.
bool has_host_functions(uint16_t command);
// Tells the client that the functions of a command that were not announced yet will not be called. Any
// thread.
void report_not_called(Outbox& outbox, uint64_t command, CUresult why);

}  // namespace gpupool::worker::commands
