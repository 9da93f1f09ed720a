// Whether this process is locked or checkpointed (cuCheckpointProcess...). While it is locked, every call
// into the library blocks at its beginning. While it is checkpointed, the memory of its own is not charged to
// the devices; nothing has to be moved, because softgpu's device memory is host memory.
//
// Any thread. Locking waits for queued work, but not for other calls that have already begun.
#pragma once
#include <atomic>
#include <mutex>

#include "protocol/driver/cuda_header.h"

namespace gpupool::softgpu {

class ProcessState {
 public:
  enum : int {
    kRunning = 0,
    kLocked = 1,
    kCheckpointed = 2
  };  // as CUprocessState, which headers before CUDA 12.8 do not have

  // Blocks while the process is locked. Called at the beginning of each call.
  void wait_while_locked() const {
    while (locked_out_.load(std::memory_order_acquire)) [[unlikely]]
      locked_out_.wait(true, std::memory_order_acquire);
  }
  int get() const { return state_.load(std::memory_order_acquire); }

  // Each returns CUDA_ERROR_ILLEGAL_STATE if the process is not in the state that the change starts from.
  CUresult lock(unsigned timeout_ms);  // 0: no timeout; CUDA_ERROR_NOT_READY: timed out waiting for work
  CUresult checkpoint();
  CUresult restore();  // CUDA_ERROR_OUT_OF_MEMORY: a device lacks the memory; nothing has changed
  CUresult unlock();

 private:
  void admit_calls();

  std::atomic<bool> locked_out_{false};
  std::atomic<int> state_{kRunning};
  std::mutex mutex_;  // serialises changes
};

}  // namespace gpupool::softgpu
