// The client's state of a stream: flags, priority, id. Thread-safe.
#pragma once
#include <atomic>

#include "client/session/call.h"

namespace gpupool::client {

struct Stream : Object {
  unsigned flags = 0;
  std::atomic<int> priority{0};
  unsigned long long id = 0;
};

// Properties of a stream; the special streams have fixed ones.
struct StreamFacts {
  Session* session = nullptr;
  Context* context = nullptr;  // of the stream
  unsigned flags = CU_STREAM_DEFAULT;
  int priority = 0;
  unsigned long long id = 1;
};
CUresult describe_stream(CUstream stream, StreamFacts* facts);

// client/api/stream.cc: true if the stream synchronises with the legacy null stream.
bool is_blocking(uint64_t stream);

// Clamps to the priority range of the context's streams, as CUDA does; lower is more urgent. 0 needs no round
// trip; otherwise the server is asked once.
CUresult clamp_priority(Context& context, int* priority);

}  // namespace gpupool::client
