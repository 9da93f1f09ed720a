#include "server/worker/stream_holds.h"

namespace gpupool::worker {

CUresult StreamHolds::hold(StreamState& stream, uint64_t id) {
  if (holds_.contains(id)) return CUDA_ERROR_INVALID_VALUE;
  SignalPool& signals = *stream.context->signals;
  Signal* const signal = signals.take();
  if (!signal) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = signals.wait(*signal, signal->value + 1, stream.stream);
  if (result != CUDA_SUCCESS) {
    signals.give(signal);
    return result;
  }
  ++signal->value;
  holds_.emplace(id, Hold{signal, stream.context});
  return CUDA_SUCCESS;
}

bool StreamHolds::resume(uint64_t id, Contexts& contexts) {
  const auto found = holds_.find(id);
  if (found == holds_.end()) return false;
  contexts.enter(found->second.context);
  go_on(found->second);
  holds_.erase(found);
  return true;
}

void StreamHolds::release(const ContextState& context) {
  std::erase_if(holds_, [&](const auto& entry) {
    if (entry.second.context != &context) return false;
    go_on(entry.second);
    return true;
  });
}

void StreamHolds::go_on(const Hold& hold) {
  SignalPool& signals = *hold.context->signals;
  signals.raise(*hold.signal, hold.signal->value);
  signals.give(hold.signal);
}

}  // namespace gpupool::worker
