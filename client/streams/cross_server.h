// Orders a stream behind work on another server. The client holds the stream on its own server
// (wire::HoldStream), waits until the other server reports completion, and then resumes it. No thread of the
// program waits.
//
// Errors of this work are returned by the next call that waits in the stream's context. If a server is lost,
// the streams that wait for it resume with an error. Thread-safe.
#pragma once
#include <functional>

#include "client/session/call.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

// cuStreamWaitEvent for an event of another server. The stream is resolved and belongs to `context`.
CUresult wait_for_event(Context& context, CUstream stream, const Object& event);

// Runs `work` on a client thread once the stream has reached this point, and resumes the stream when `work`
// returns. `from` and `to` are contexts of other servers that it uses (null: none); they are kept alive until
// then.
CUresult run_between(Context& context, CUstream stream, Context* from, Context* to,
                     std::function<CUresult()> work);

// True if any stream is held. Making all streams wait for a synchronous copy could then deadlock, so the
// caller must wait itself.
bool streams_held();
// Notes that the program uses cuStreamWaitValue: a stream may wait for a value that another stream has yet to
// write.
void note_value_waits();
bool streams_may_block();  // streams_held(), or note_value_waits() was called

// Blocks until no work between servers uses the context. Called before the context is destroyed.
void await_cross_server_work(Context& context);

// Flushes the command queue and blocks until the stream's (the context's) work is done.
CUresult synchronize_stream(Context& context, CUstream stream);
CUresult synchronize_context(Context& context);

}  // namespace gpupool::client
