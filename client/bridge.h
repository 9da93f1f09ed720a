// Work between servers: a stream of one that waits for something on another. The client stands between them: the stream is
// held on its server (wire::HoldStream) until the client, told by the other server, lets it go on. No thread of the program
// waits.
//
// Errors of such work come with the next call that waits in the stream's context. A server that is lost holds up nobody:
// what waits for it goes on, with an error. Any thread.
#pragma once
#include <functional>

#include "client/call.h"
#include "protocol/wire/commands.h"

namespace gpupool::client {

// cuStreamWaitEvent, where the event is of another server than the stream, which is resolved and of `context`.
CUresult wait_for_event(Context& context, CUstream stream, const Object& event);

// Runs `work` on a thread of the client's when the stream gets there; the stream goes on when it has returned. `others` are the
// contexts of other servers that it uses (null: none); they live until then.
CUresult run_between(Context& context, CUstream stream, Context* from, Context* to, std::function<CUresult()> work);

// Is any stream held? Then nothing else may be made to wait for all streams.
bool streams_held();
// The program makes streams wait for values in memory, which it may write by another stream.
void note_value_waits();
bool streams_may_stand();  // streams_held(), or note_value_waits() was called

// Until no such work names the context: it is about to end.
void await_bridges(Context& context);

// Sends what is queued and waits until the stream has done it.
CUresult synchronize_stream(Context& context, CUstream stream);
CUresult synchronize_context(Context& context);

}  // namespace gpupool::client
