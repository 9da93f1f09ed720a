// The executor's current command, its stream, and the reason why it waits, for monitoring by other threads.
// Only the executor's thread writes. A read of several fields is not atomic: a reader may see fields of two
// successive commands.
#pragma once
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "server/worker/session/thread_activity.h"

namespace gpupool::worker {

class CurrentCommand {
 public:
  static constexpr uint64_t kNoStream = ~uint64_t{0};
  struct Command {
    uint64_t sequence = 0;             // 0: no command is being executed
    uint64_t context = 0;              // the client's handle
    uint64_t stream = kNoStream;       // the client's handle; 0: the legacy stream of `context`
    uint16_t id = 0;                   // id of a row or command; 0: internal work between two commands
    std::chrono::nanoseconds since{};  // start, on the steady clock, accurate to a few milliseconds
  };

  // Called once, by the executor's thread.
  void begin_session() { activity_.store(&t_activity, std::memory_order_release); }
  // The sequence number of the current command, 0 between commands.
  uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  Command command() const {
    constexpr auto order = std::memory_order_relaxed;
    return {sequence_.load(order), context_.load(order), stream_.load(order), id_.load(order),
            std::chrono::nanoseconds(since_.load(order))};
  }
  std::chrono::nanoseconds age() const {
    return std::max(coarse_now() - command().since, std::chrono::nanoseconds(0));
  }
  // The driver function that the executor is inside, and the reason for its wait; null: none.
  const char* driver_function() const { return read(&ThreadActivity::driver_function); }
  const char* waits_for() const { return read(&ThreadActivity::waits_for); }
  // Counters, for comparison with what the client has sent.
  uint64_t received() const { return received_.load(std::memory_order_relaxed); }
  uint64_t executed() const { return executed_.load(std::memory_order_relaxed); }

  void begin(uint64_t sequence, uint16_t id, uint64_t context) {
    set({sequence, context, kNoStream, id, coarse_now()});
  }
  void end() { sequence_.store(0, std::memory_order_relaxed); }
  void uses(uint64_t stream) { stream_.store(stream, std::memory_order_relaxed); }
  void count_received(uint64_t sequence) { received_.store(sequence, std::memory_order_relaxed); }
  void count_executed() { executed_.store(executed() + 1, std::memory_order_relaxed); }

  // Marks a command that runs within another command or between two, for the lifetime of this object.
  class Inner {
   public:
    Inner(CurrentCommand& current_command, uint64_t sequence, uint16_t id, uint64_t context)
        : current_command_(current_command), outer_(current_command.command()) {
      current_command_.begin(sequence, id, context);
    }
    ~Inner() { current_command_.set(outer_); }
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    CurrentCommand& current_command_;
    const Command outer_;
  };

 private:
  // Costs a tenth of reading the exact clock.
  static std::chrono::nanoseconds coarse_now() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }
  const char* read(std::atomic<const char*> ThreadActivity::*word) const {
    const ThreadActivity* const activity = activity_.load(std::memory_order_acquire);
    return activity ? (activity->*word).load(std::memory_order_relaxed) : nullptr;
  }
  void set(const Command& command) {
    constexpr auto order = std::memory_order_relaxed;
    context_.store(command.context, order);
    stream_.store(command.stream, order);
    id_.store(command.id, order);
    since_.store(command.since.count(), order);
    sequence_.store(command.sequence, order);
  }

  std::atomic<const ThreadActivity*> activity_{nullptr};
  std::atomic<uint64_t> sequence_{0}, context_{0}, stream_{kNoStream}, received_{0}, executed_{0};
  std::atomic<int64_t> since_{0};
  std::atomic<uint16_t> id_{0};
};

}  // namespace gpupool::worker
