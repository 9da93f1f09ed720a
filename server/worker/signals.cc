#include "server/worker/signals.h"

#include <atomic>
#include <cstring>

namespace gpupool::worker {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kSignalBytes = 64;       // one per cache line: the device polls one, the CPU writes its neighbour
constexpr size_t kMaxBlocks = 64;         // 4096 signals: more copies on their way than a session can stage

}  // namespace

bool SignalPool::grow() {
  if (!api_.cuStreamWaitValue32_v2 || !api_.cuStreamWriteValue32_v2 || !api_.cuMemHostGetDevicePointer_v2 ||
      !api_.cuStreamCreate || blocks_.size() >= kMaxBlocks) {
    return false;
  }
  if (!stream_ && api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
  void* memory = nullptr;
  if (api_.cuMemHostAlloc(&memory, kBlockBytes, CU_MEMHOSTALLOC_DEVICEMAP) != CUDA_SUCCESS) return false;
  std::memset(memory, 0, kBlockBytes);
  CUdeviceptr address = 0;
  if (api_.cuMemHostGetDevicePointer_v2(&address, memory, 0) != CUDA_SUCCESS) {
    api_.cuMemFreeHost(memory);
    return false;
  }
  blocks_.push_back(memory);
  std::vector<Signal>& block = signals_.emplace_back(kBlockBytes / kSignalBytes);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < block.size(); ++i) {
    block[i].word = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(memory) + i * kSignalBytes);
    block[i].address = address + i * kSignalBytes;
    idle_.push_back(&block[i]);
  }
  return true;
}

Signal* SignalPool::take() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        Signal* const signal = idle_.back();
        idle_.pop_back();
        return signal;
      }
    }
    if (!grow()) return nullptr;
  }
}

void SignalPool::give(Signal* signal) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(signal);
}

CUresult SignalPool::wait(const Signal& signal, uint32_t value, CUstream stream) {
  return api_.cuStreamWaitValue32_v2(stream, signal.address, value, CU_STREAM_WAIT_VALUE_GEQ);
}

void SignalPool::raise(const Signal& signal, uint32_t value) {
  if (api_.cuStreamWriteValue32_v2(stream_, signal.address, value, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS) return;
  // A broken context: its streams wait for nothing any more, but the value stays true.
  std::atomic_ref(*signal.word).store(value, std::memory_order_release);
}

void SignalPool::clear() {
  if (stream_) {
    api_.cuStreamSynchronize(stream_);
    api_.cuStreamDestroy_v2(stream_);
    stream_ = nullptr;
  }
  for (void* const memory : blocks_) api_.cuMemFreeHost(memory);
  const std::lock_guard lock(mutex_);
  idle_.clear();
  blocks_.clear();
  signals_.clear();
}

}  // namespace gpupool::worker
