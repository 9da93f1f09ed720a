// Is this process locked, or checkpointed (cuCheckpointProcess...)? Locked, every call into the library waits at its beginning; checkpointed,
// what the process has of its devices counts for nothing: softgpu's device memory is host memory already, so nothing has to be moved.
//
// Any thread. Calls that had begun before the lock may go on beside it; they can only add to what is theirs.
#pragma once
#include <atomic>
#include <mutex>

#include "protocol/cuda/cuda_header.h"

namespace gpupool::softgpu {

class ProcessState {
 public:
  enum : int { kRunning = 0, kLocked = 1, kCheckpointed = 2 };  // as CUprocessState, which headers before CUDA 12.8 do not have

  // At the beginning of a call.
  void pass() const {
    while (closed_.load(std::memory_order_acquire)) [[unlikely]] closed_.wait(true, std::memory_order_acquire);
  }
  int get() const { return state_.load(std::memory_order_acquire); }

  // Each gives CUDA_ERROR_ILLEGAL_STATE in another state than it goes on from.
  CUresult lock(unsigned timeout_ms);  // 0: none; CUDA_ERROR_NOT_READY: work of the process was not done in time
  CUresult checkpoint();
  CUresult restore();  // CUDA_ERROR_OUT_OF_MEMORY: a device has not that much left, and nothing has changed
  CUresult unlock();

 private:
  void open();

  std::atomic<bool> closed_{false};
  std::atomic<int> state_{kRunning};
  std::mutex mutex_;  // one change at a time
};

}  // namespace gpupool::softgpu
