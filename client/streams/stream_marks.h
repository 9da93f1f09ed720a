// The client's own events, recorded behind memory frees of a stream. Used to ask the server whether earlier
// work is done, and to order another stream behind it (REUSE_ALLOW_OPPORTUNISTIC and
// REUSE_ALLOW_INTERNAL_DEPENDENCIES of memory pools). Thread-safe.
#pragma once
#include "client/session/call.h"
#include "client/streams/stream_order.h"

namespace gpupool::client {

// A stream's key in StreamOrder.
inline uint64_t order_key(const Context& context, CUstream stream) {
  return stream ? cuda::handle_bits(stream) : context.handle;
}
// Returns the context that the stream was made in; for a null stream, `current`.
const Context& stream_context(const Context& current, CUstream stream);

// Asks the server whether the work before the point is done, with one round trip; updates StreamOrder if so.
// An error may be an earlier call's.
CUresult ask_passed(const FreePoint& point);
// Makes the stream wait for the point. Returns false if that is not possible.
bool wait_for_point(Context& context, CUstream stream, const FreePoint& point);
// Call before the stream is destroyed: records an event, so that its frees can still be queried.
void prepare_stream_destruction(CUstream stream);
// Call when the context has been destroyed, with its events.
void forget_marks_of(uint64_t context);
// Destroys the events of destroyed streams whose work is done.
void destroy_stale_marks();

}  // namespace gpupool::client
