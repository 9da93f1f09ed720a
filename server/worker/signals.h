// Words in pinned memory by which a stream waits for a thread of the worker: "the device itself waits". One pool per
// context.
//
// A signal's value only grows. A stream is told to wait until it has reached a value; whoever has done what the stream
// waits for raises it. take() and wait() belong to the executor's thread, give() to any, raise() to any that has the context
// current. Where the device has no stream memory operations take() gives none, and copies travel another way.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "server/worker/device_api.h"

namespace gpupool::worker {

struct Signal {
  uint32_t* word = nullptr;
  CUdeviceptr address = 0;  // the word, as the device sees it
  uint32_t value = 0;       // the last one that was waited for: who takes the signal goes on from here
};

class SignalPool {
 public:
  explicit SignalPool(const DeviceApi& api) : api_(api) {}
  SignalPool(const SignalPool&) = delete;
  SignalPool& operator=(const SignalPool&) = delete;

  Signal* take();
  // When nothing waits for it any more and its value has been reached.
  void give(Signal* signal);
  CUresult wait(const Signal& signal, uint32_t value, CUstream stream);
  void raise(const Signal& signal, uint32_t value);
  // The context is about to be destroyed; every signal must have come back.
  void clear();

 private:
  bool grow();

  const DeviceApi& api_;
  std::mutex mutex_;                 // idle_
  std::vector<Signal*> idle_;
  std::vector<std::vector<Signal>> signals_;
  std::vector<void*> blocks_;        // pinned memory
  CUstream stream_ = nullptr;        // on which the device is told: it notices at once, whatever it waits for by polling
};

}  // namespace gpupool::worker
