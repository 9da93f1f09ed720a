// How much of a stream's work is known to be done. The device may report "not ready" although all of the
// client's work is done, because events of the worker (for frees, for measuring) are queued behind it. Any
// thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpupool::worker {

class StreamProgress {
 public:
  // Records that all work up to this use (Contexts::uses()) is done.
  void raise(uint64_t use) { raise(done_, use); }
  // Records that an event behind this use has passed, so that work the stream had to wait for is done as
  // well.
  void passed(uint64_t use) {
    raise(awaited_, use);
    raise(done_, use);
  }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  uint64_t awaited() const { return awaited_.load(std::memory_order_acquire); }

 private:
  static void raise(std::atomic<uint64_t>& number, uint64_t use) {
    uint64_t known = number.load(std::memory_order_relaxed);
    while (known < use &&
           !number.compare_exchange_weak(known, use, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  std::atomic<uint64_t> done_{0}, awaited_{0};
};

// Information that becomes valid when an event has passed. Replaced before each new recording of the event.
struct Recorded {
  std::shared_ptr<StreamProgress> progress;
  uint64_t use = 0;
  void passed() const { progress->passed(use); }
};

}  // namespace gpupool::worker
