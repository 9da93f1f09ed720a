// How far a stream's work is known to be done. The device may say "not ready" of a stream whose work the client has seen
// end: events of the worker's own (for frees, for what is measured) stand behind it. Any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace gpupool::worker {

class Progress {
 public:
  // Everything that the stream got up to this use (Contexts::uses()) is done.
  void raise(uint64_t use) { raise(done_, use); }
  // An event behind that use has passed: what the stream had to wait for is done too.
  void passed(uint64_t use) {
    raise(awaited_, use);
    raise(done_, use);
  }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  uint64_t awaited() const { return awaited_.load(std::memory_order_acquire); }

 private:
  static void raise(std::atomic<uint64_t>& number, uint64_t use) {
    uint64_t known = number.load(std::memory_order_relaxed);
    while (known < use && !number.compare_exchange_weak(known, use, std::memory_order_release, std::memory_order_relaxed)) {}
  }
  std::atomic<uint64_t> done_{0}, awaited_{0};
};

// What an event that has passed says. A later recording of the event makes a new one, before the device hears of it.
struct Recorded {
  std::shared_ptr<Progress> progress;
  uint64_t use = 0;
  void passed() const { progress->passed(use); }
};

}  // namespace gpupool::worker
