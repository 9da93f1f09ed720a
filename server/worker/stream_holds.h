// Streams that go on when the client says so. Each waits for a word in memory (signals.h), so that no thread of the worker or
// of the device stands still for it. The executor's thread alone.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "server/worker/contexts.h"

namespace gpupool::worker {

class StreamHolds {
 public:
  // The stream's context is current. CUDA_ERROR_NOT_SUPPORTED: the device has no stream memory operations, or too many wait.
  CUresult hold(StreamState& stream, uint64_t id);
  // False: no such hold. Makes its context current.
  bool resume(uint64_t id, Contexts& contexts);
  bool any() const { return !holds_.empty(); }
  // The context, which is current, is about to be destroyed or its session to end: its streams go on.
  void release(const ContextState& context);

 private:
  struct Hold {
    Signal* signal;
    ContextState* context;
  };
  void go_on(const Hold& hold);

  std::unordered_map<uint64_t, Hold> holds_;
};

}  // namespace gpupool::worker
