// Fills a stream's queue on a separate thread until a call blocks. Used by queues.cc and beside.cc.
#pragma once
#include <atomic>
#include <functional>
#include <memory>

#include "probe.h"

namespace probe {

class Filler {
 public:
  static constexpr int kMostOperations = 50'000;

  Filler(CUcontext context, std::function<CUresult()> operation);
  // Returns true once a call has blocked; false if none did within 8 s or kMostOperations calls.
  bool await_blocked() const;
  int operations() const { return progress_->operations; }  // number of calls that have returned
  bool ended() const { return progress_->ended; }
  CUresult result() const { return progress_->result; }
  void stop() const { progress_->stop = true; }

 private:
  struct Progress {
    std::atomic<int> operations{0};
    std::atomic<CUresult> result{CUDA_SUCCESS};
    std::atomic<bool> stop{false}, ended{false};
  };
  std::shared_ptr<Progress> progress_;
};

}  // namespace probe
