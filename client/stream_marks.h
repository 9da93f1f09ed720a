// Events of the client's own that are recorded behind memory frees of a stream: to ask the server whether the work before them is done, and to
// order another stream behind it (REUSE_ALLOW_OPPORTUNISTIC and REUSE_ALLOW_INTERNAL_DEPENDENCIES of memory pools). Any thread.
#pragma once
#include "client/call.h"
#include "client/stream_order.h"

namespace gpupool::client {

// The name of a stream for StreamOrder.
inline uint64_t order_key(const Context& context, CUstream stream) { return stream ? cuda::handle_bits(stream) : context.handle; }
// The context that a stream was made in; `current` for a null stream.
const Context& stream_context(const Context& current, CUstream stream);

// One round trip. Where it is done StreamOrder knows that afterwards. An error may be an earlier call's.
CUresult ask_passed(const FreePoint& point);
// Makes the stream wait for the point. False if that is not possible.
bool wait_for_point(Context& context, CUstream stream, const FreePoint& point);
// Before the stream is destroyed: what it has freed can still be asked about.
void stream_departs(CUstream stream);
// The context has been destroyed, and its events with it.
void forget_marks_of(uint64_t context);
// Destroys the events of streams that are gone and done.
void tidy_marks();

}  // namespace gpupool::client
