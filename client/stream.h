// What the client remembers of a stream that it made. Any thread.
#pragma once
#include <atomic>

#include "client/call.h"

namespace gpupool::client {

struct Stream : Object {
  unsigned flags = 0;
  std::atomic<int> priority{0};
  unsigned long long id = 0;
};

// Clamps to the range of the context's streams, as CUDA does; lower is more urgent. The server is asked once, and not at all for 0.
CUresult clamp_priority(Context& context, int* priority);

}  // namespace gpupool::client
