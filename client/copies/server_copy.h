// Copies that involve several servers: between devices of two servers, or between the program's memory and a
// device of another server than the stream's. When the stream reaches the copy, one server sends to the other
// directly; if it cannot, or if one end is the program's memory, the data goes through the client in pieces.
// Thread-safe.
#pragma once
#include "client/streams/cross_server.h"

namespace gpupool::client {

// One end of a copy: slices of rows.
struct CopyEnd {
  bool on_device = false;
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint64_t slice = 0;          // bytes from one slice to the next
  Context* context = nullptr;  // for device memory: a context in which the memory can be used
};
struct CopyBox {
  CopyEnd from, to;
  uint64_t width = 0, height = 1, depth = 1;
};
inline bool is_empty(const CopyBox& box) {
  return box.width == 0 || box.height == 0 || box.depth == 0;
}

// Copies in the order of the stream, which is resolved and belongs to `context`. `wait`: waits for both
// contexts before the copy, and for the copy before returning.
CUresult copy_between_servers(Context& context, CUstream stream, const CopyBox& box, bool wait);

// Copies between devices of one server, in the order of the stream, which is resolved and belongs to
// `context`.
CUresult copy_on_server(Context& context, CUstream stream, const CopyBox& box);

// Calls `copy`, which copies between the devices of `from` and `to` in the legacy stream of `context`. The
// copy comes behind the present work of the three legacy streams, and their later work behind the copy
// ("Peer-to-Peer Memory Copy" in the CUDA C++ Programming Guide). The driver alone does not achieve that,
// because it knows neither other servers nor what the worker keeps in its backlog.
CUresult copy_in_legacy_streams(Context& context, Context& from, Context& to,
                                const std::function<CUresult()>& copy);

// Returns a context of the session in which the memory at the address can be used; null: the address does not
// belong to the session, or its context is gone.
Context* context_of(Session& session, uint64_t address);

}  // namespace gpupool::client
