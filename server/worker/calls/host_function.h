// Telling the client that the turn of its host functions has come: those in streams, and nodes of graphs. The executor's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "server/worker/executor.h"

namespace gpupool::worker::commands {

// Tells the client when the stream, whose context is current, has done what it got so far. After an error of the device's `failed` is called in
// place of that, by any thread, and the client told that the functions are not called, as CUDA calls none then. Calls `failed` also before it
// returns an error. `command`: the sequence number of the command that has these functions.
CUresult call_back_when_done(Executor& session, StreamState& stream, uint64_t command, std::vector<uint64_t> callbacks, std::function<void()> failed);

// Commands with functions that the client waits to be told of.
bool calls_back(uint16_t command);
// Tells the client that the functions of a command that it has not been told of will not be called. Any thread.
void tell_not_called(Executor& session, uint64_t command, CUresult why);

}  // namespace gpupool::worker::commands
