// Runs one client's session in its worker process, from the end of the hello to the end of the connection.
// Called by the worker's main thread.
//
// The client is not trusted: anything that it sends results at worst in a CUDA error or in the end of this
// session. run_session() returns when the client has left, or was made to leave, and its objects are freed.
// If the device does not release them in time (an endless kernel), it calls _exit(), and the driver frees
// everything that the process holds.
#pragma once
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

// Returns the exit status for the worker process: 0 after an orderly end (goodbye, or the client closed the
// connection).
int run_session(SessionStart start);

}  // namespace gpupool::worker
