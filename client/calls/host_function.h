// Host functions: the server says when a stream has reached one, a thread of this process runs it, the stream goes on.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

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

// The same for a graph's node: `action` runs each time that the server says so under this number, until forgotten and all launches
// are through.
uint64_t keep_host_function(std::function<uint64_t()> action);
void forget_host_functions(const std::vector<uint64_t>& ids);
// A launch of the graph is about to be sent, in which each of them will run once; `failed`: it was not sent after all.
void host_functions_launched(Session& session, const std::vector<uint64_t>& ids, bool failed = false);

}  // namespace gpupool::client
