// Host functions: the server says when a stream has reached one, a thread of this process runs it, the stream goes on.
#pragma once
#include <cstdint>
#include <functional>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::client {

class Session;
struct Context;

// Called by whoever receives the server's message: hands the function to the thread that runs them, in that order.
void run_host_function(Session& session, uint64_t callback);

// Has the program launched host functions that have not ended? They may still write what a later copy reads.
bool host_functions_pending();

// Runs `action` in the client when `stream` (resolved) gets there. The stream goes on when it returns and the stream whose
// handle it returns (0: none) has done what it got so far.
CUresult run_in_stream(Session& session, Context& context, CUstream stream, std::function<uint64_t()> action);

}  // namespace gpupool::client
