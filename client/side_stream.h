// Copies and fills of another device's memory than that of the caller's stream, which may have no access to it. They are done in a stream of the
// memory's device, in the order of the caller's stream: fork(), the work in the stream that it gives, join(). For devices of one server, which orders
// the streams by events; nobody waits. Any thread.
#pragma once
#include "client/call.h"

namespace gpupool::client {

// The least used of a context's streams of one kind (Context::lent, side_streams), or a new one while all are in use and there are few.
CUresult lend_stream(Context& context, std::vector<LentStream>& streams, CUstream* stream);

// The context in which to work with the memory. Null: `context` itself.
Context* side_context(const Context& context, uint64_t address);

// *side_stream: one of `side`, whose next work comes behind what `stream` has got by now.
CUresult fork(Context& context, CUstream stream, Context& side, CUstream* side_stream);
// What `stream` gets next comes behind what `side_stream` has got by now.
CUresult join(Context& context, CUstream stream, Context& side, CUstream side_stream);

// What `stream` gets next comes behind what `earlier`, of the same session, has got by now. Counts as work of both.
CUresult order_after(Context& context, CUstream stream, Context& earlier_context, CUstream earlier);
// `stream` has work now, behind what it is to wait for: whoever waits for it waits for that, too.
CUresult give_event(Context& context, CUstream stream);

}  // namespace gpupool::client
