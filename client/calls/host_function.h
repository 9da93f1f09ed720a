// Host functions: the server says when a stream has reached one, a thread of this process runs it, the stream goes on.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "client/session.h"

namespace gpupool::client {

// Called by whoever receives the server's message: hands the function to the thread that runs them, in that order. `command`: the sequence number
// of the command behind which it runs. With an error as `result` no function of that command (0: of the session) runs any more that has not been
// announced.
void host_function_turn(Session& session, uint64_t callback, uint64_t command, CUresult result);

// Has the program launched host functions that have not ended? They may still write what a later copy reads.
bool host_functions_pending();

// Runs `action` in the client when `stream` (resolved) gets there. The stream goes on when it returns and the stream whose
// handle it returns (0: none) has done what it got so far.
CUresult run_in_stream(Session& session, Context& context, CUstream stream, std::function<uint64_t()> action);

// The same for a graph's node: `action` runs each time that the server says so under this number, until forgotten and all launches
// are through.
uint64_t keep_host_function(Session& session, std::function<uint64_t()> action);
void forget_host_functions(const std::vector<uint64_t>& ids);

// Each of the functions is to run once behind this command, which is about to be sent.
void expect_host_functions(Session& session, uint64_t command, const std::vector<uint64_t>& ids);
template <class Body>
CUresult post_with_host_functions(Session& session, Context& context, wire::Command command, const Body& body, const std::vector<uint64_t>& ids) {
  const CUresult result = session.post_known(command, context, body, [&](uint64_t sequence) { expect_host_functions(session, sequence, ids); });
  // Those that the session's failure has not found.
  if (session.failed()) host_function_turn(session, 0, 0, Session::failure());
  return result;
}

}  // namespace gpupool::client
