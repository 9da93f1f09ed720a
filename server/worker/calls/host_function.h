// Telling the client that the turn of its host functions has come: those in streams, and nodes of graphs. The executor's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "server/worker/executor.h"

namespace gpupool::worker::commands {

// Tells the client when the stream, whose context is current, has done what it got so far. After an error of the device's `failed` is called in
// place of that, by any thread: CUDA calls no host function then. Calls `failed` also before it returns an error.
CUresult call_back_when_done(Executor& session, StreamState& stream, std::vector<uint64_t> callbacks, std::function<void()> failed);

}  // namespace gpupool::worker::commands
