// Host functions: the server says when a stream has reached one, a thread of this process runs it, the stream goes on.
#pragma once
#include <cstdint>

namespace gpupool::client {

class Session;

// Called by whoever receives the server's message: hands the function to the thread that runs them, in that order.
void run_host_function(Session& session, uint64_t callback);

}  // namespace gpupool::client
