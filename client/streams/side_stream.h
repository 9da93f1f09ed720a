// Copies and fills of memory on another device than the caller's stream, which may have no access to it. They
// run in a stream of the memory's device, in the order of the caller's stream: fork_to_side_stream(), the
// work in *side_stream, join_side_stream(). Only for devices of one server, which orders the streams by
// events; the client does not wait. Thread-safe.
#pragma once
#include "client/session/call.h"

namespace gpupool::client {

// Returns the least used of `streams` (Context::wait_streams or side_streams). Creates another one while all
// are in use and there are fewer than 8.
CUresult borrow_stream(Context& context, std::vector<InternalStream>& streams, CUstream* stream);

// Returns the context in which to work with the memory; null: `context` itself.
Context* side_context(const Context& context, uint64_t address);

// *side_stream: a stream of `side` that is ordered behind all present work of `stream`.
CUresult fork_to_side_stream(Context& context, CUstream stream, Context& side, CUstream* side_stream);
// Orders later work of `stream` behind all present work of `side_stream`.
CUresult join_side_stream(Context& context, CUstream stream, Context& side, CUstream side_stream);

// Orders later work of `stream` behind all present work of `earlier`, which may belong to another session.
// Counts as work of both streams.
CUresult order_after(Context& context, CUstream stream, Context& earlier_context, CUstream earlier);
// Gives `stream` a work item (an event record), so that a wait for the stream includes what it has to wait
// for.
CUresult record_marker_event(Context& context, CUstream stream);

}  // namespace gpupool::client
