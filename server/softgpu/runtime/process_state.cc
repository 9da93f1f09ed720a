#include "server/softgpu/runtime/process_state.h"

#include <time.h>

#include <chrono>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/device.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

constexpr timespec kPollInterval{0, 200'000};

bool all_idle() {
  for (const Ref<Object>& object : runtime().handles().all(HandleKind::context)) {
    Context& context = static_cast<Context&>(*object);
    if (context.active() && !context.idle()) return false;
  }
  return true;
}

}  // namespace

void ProcessState::admit_calls() {
  locked_out_.store(false, std::memory_order_release);
  locked_out_.notify_all();
}

CUresult ProcessState::lock(unsigned timeout_ms) {
  const std::lock_guard guard(mutex_);
  if (get() != kRunning) return CUDA_ERROR_ILLEGAL_STATE;
  const auto stop = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  locked_out_.store(true, std::memory_order_release);
  while (!all_idle()) {
    if (timeout_ms != 0 && std::chrono::steady_clock::now() >= stop)
      return admit_calls(), CUDA_ERROR_NOT_READY;
    ::nanosleep(&kPollInterval, nullptr);
  }
  state_.store(kLocked, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult ProcessState::checkpoint() {
  const std::lock_guard guard(mutex_);
  if (get() != kLocked) return CUDA_ERROR_ILLEGAL_STATE;
  for (const auto& device : runtime().devices()) device->shared().park();
  state_.store(kCheckpointed, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult ProcessState::restore() {
  const std::lock_guard guard(mutex_);
  if (get() != kCheckpointed) return CUDA_ERROR_ILLEGAL_STATE;
  const auto& devices = runtime().devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i]->shared().unpark()) continue;
    for (size_t done = 0; done < i; ++done) devices[done]->shared().park();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  state_.store(kLocked, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult ProcessState::unlock() {
  const std::lock_guard guard(mutex_);
  if (get() != kLocked) return CUDA_ERROR_ILLEGAL_STATE;
  state_.store(kRunning, std::memory_order_release);
  admit_calls();
  return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
