// The executor's current command, its stream, and the reason for a wait, for monitoring by other threads. Only the executor's thread
// writes. Reads are not atomic as a whole: a reader may see fields of two successive commands.
#pragma once
#include <atomic>
#include <cstdint>

namespace gpupool::worker {

class AtWork {
 public:
  // The sequence number of the current command, 0 between commands.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  uint16_t command() const { return command_.load(std::memory_order_relaxed); }
  uint64_t stream() const { return stream_.load(std::memory_order_relaxed); }  // the driver's handle; 0: none, or a default stream
  static constexpr const char* kDriver = "the driver";
  // kDriver, or the reason of the innermost Waiting.
  const char* waits_for() const { return waits_for_.load(std::memory_order_relaxed); }

  void begin(uint64_t sequence, uint16_t command) {
    stream_.store(0, std::memory_order_relaxed);
    command_.store(command, std::memory_order_relaxed);
    sequence_.store(sequence, std::memory_order_relaxed);
  }
  void end() { sequence_.store(0, std::memory_order_relaxed); }
  void uses(const void* stream) { stream_.store(reinterpret_cast<uintptr_t>(stream), std::memory_order_relaxed); }

  // Sets the reason for a wait during its lifetime. `what` must be a string literal, such as "its turn on the GPU".
  class Waiting {
   public:
    Waiting(AtWork& at_work, const char* what) : at_work_(at_work), before_(at_work.waits_for_.exchange(what, std::memory_order_relaxed)) {}
    ~Waiting() { at_work_.waits_for_.store(before_, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    AtWork& at_work_;
    const char* const before_;
  };

 private:
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> stream_{0};
  std::atomic<uint16_t> command_{0};
  std::atomic<const char*> waits_for_{kDriver};
};

}  // namespace gpupool::worker
