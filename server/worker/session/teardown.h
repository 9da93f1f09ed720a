// Destroys parts of a session, or all of it, users before what they use: a stream, a context, the session.
// Executor's thread.
#pragma once
#include "server/worker/compute/device_partition.h"
#include "server/worker/session/contexts.h"

namespace gpupool::worker {

class Session;

// Call before the stream is destroyed. Its unfinished copies and uses are tracked without it from then on.
void before_stream_destroyed(Session& session, StreamState& stream);
// Call before the context is destroyed: frees everything that the session has in it. Returns false if a wait
// in it does not end within 10 s.
bool leave(Session& session, ContextState& context);
// Destroys a context after leave(). Does not release a primary context, which the caller must do.
CUresult destroy_context_object(Session& session, CUcontext object, bool primary, GreenContext green);
// Frees everything; blocks while the device is using it.
void tear_down(Session& session);

}  // namespace gpupool::worker
