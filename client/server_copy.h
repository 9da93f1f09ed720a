// Copies that reach more than one server: between the devices of two, or between the program's memory and a device of
// another server than the stream's. When the stream has got there, the one server sends to the other; where it
// cannot, and where the program's memory is an end, the data goes through the client in pieces. Any thread.
#pragma once
#include "client/bridge.h"

namespace gpupool::client {

// One end of a copy: rows in slices.
struct End {
  bool on_device = false;
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint64_t slice = 0;          // bytes from one slice to the next
  Context* context = nullptr;  // on a device: one in which the memory can be used
};
struct Box {
  End from, to;
  uint64_t width = 0, height = 1, depth = 1;
};

// In the order of the stream, which is resolved and of `context`. wait: to the caller nothing of either device runs beside it,
// and it is done on return.
CUresult copy_between_servers(Context& context, CUstream stream, const Box& box, bool wait);

// Between devices of one server, in the stream's order; the stream is resolved and of `context`.
CUresult copy_on_server(Context& context, CUstream stream, const Box& box);

// A context of the session in which the memory at the address can be used; null: it is none of the session's, or its context is
// gone.
Context* context_of(Session& session, uint64_t address);

}  // namespace gpupool::client
