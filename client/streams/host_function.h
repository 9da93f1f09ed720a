// Host functions: the server announces that a stream has reached one, a thread of this process runs it, and
// the stream continues. Also runs the client's own work in stream order, and that of graph nodes.
// Thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "client/session/session.h"

namespace gpupool::client {

// Called by the thread that receives the server's message: passes the function to the thread that runs it, in
// the order of the messages. `command`: sequence number of the command that it belongs to. If `result` is an
// error, functions of that command (0: of the session) that have not been announced are not run any more.
void dispatch_host_function(Session& session, uint64_t callback, uint64_t command, CUresult result);

// True if the program's host functions, or graph nodes that the client runs, are queued or running. They may
// still write to the source of a later copy.
bool host_functions_pending();

// Runs `action` in the client when `stream` (resolved) reaches it. The stream continues when `action` has
// returned and the stream whose handle it returned (0: none) has done its present work.
CUresult run_in_stream(Session& session, Context& context, CUstream stream, std::function<uint64_t()> action);

// A function of the program: that of cuLaunchHostFunc, or the one of cuStreamAddCallback with the stream that
// it is told.
struct ProgramFunction {
  CUhostFn function = nullptr;
  CUstreamCallback callback = nullptr;
  CUstream stream = nullptr;
  void* user = nullptr;
};
CUresult run_in_stream(Session& session, Context& context, CUstream stream, const ProgramFunction& function);

// The same for a graph node: returns an id; `action` runs each time the server announces that id, until it is
// forgotten and no launch is pending.
uint64_t keep_host_function(Session& session, std::function<uint64_t()> action);
void forget_host_functions(const std::vector<uint64_t>& ids);

// Notes that each of the functions will run once for this command. Call before the command is sent.
void expect_host_functions(Session& session, uint64_t command, const std::vector<uint64_t>& ids);
template <class Body>
CUresult post_with_host_functions(Session& session, Context& context, wire::Command command, const Body& body,
                                  const std::vector<uint64_t>& ids) {
  const CUresult result = session.post_known(
      command, context, body, [&](uint64_t sequence) { expect_host_functions(session, sequence, ids); });
  // The session may have failed before the functions were registered: give them up here.
  if (session.failed()) dispatch_host_function(session, 0, 0, Session::failure());
  return result;
}

}  // namespace gpupool::client
