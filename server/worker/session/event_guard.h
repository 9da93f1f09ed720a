// Keeps the client's events alive while a wait thread uses them in a driver call. Any thread.
#pragma once
#include <mutex>
#include <unordered_map>

#include "server/worker/device/device_api.h"

namespace gpupool::worker {

class EventGuard {
 public:
  explicit EventGuard(const DeviceApi& api) : api_(api) {}
  void hold(CUevent event) {
    const std::lock_guard lock(mutex_);
    ++held_[event].holders;
  }
  void release(CUevent event) {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(event);
    if (--found->second.holders != 0) return;
    if (found->second.doomed) api_.cuEventDestroy_v2(event);
    held_.erase(found);
  }
  // Returns true if a wait holds the event, which is then destroyed when the wait ends. Returns false if the
  // caller must destroy it.
  bool postpone_destruction(CUevent event) {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(event);
    if (found == held_.end()) return false;
    found->second.doomed = true;
    return true;
  }

 private:
  struct Held {
    int holders = 0;
    bool doomed = false;
  };
  const DeviceApi& api_;
  std::mutex mutex_;
  std::unordered_map<CUevent, Held> held_;
};

}  // namespace gpupool::worker
