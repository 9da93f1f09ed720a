// Oversubscription: the session's device memory goes to host memory when poold says so and nothing of the session is on the
// device, and comes back before the next command that could touch it. All of it on the executor's thread and between two
// commands, or while a command waits for memory, so that nobody sees it.
//
// await() is what a command that finds the device full waits in. The handlers of poold's messages run on the control thread;
// the rest belongs to the executor's. Without oversubscription nothing here does anything.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "server/handover.h"
#include "server/worker/device_memory.h"

namespace gpupool::worker {

class Executor;

// Streams may wait for what this command says: the device is not waited for before it.
bool lets_go_on(uint16_t command);

class MemoryMoves final : public RoomSource {
 public:
  using Clock = std::chrono::steady_clock;

  explicit MemoryMoves(Executor& session) : session_(session) {}
  MemoryMoves(const MemoryMoves&) = delete;
  MemoryMoves& operator=(const MemoryMoves&) = delete;

  void begin();
  // No message of poold's is handled any more when this returns.
  void end();
  // False: the memory cannot come back; the session has been told why.
  bool before_command(uint16_t id);
  void after_command();
  // No command is there. How long the executor may sleep at most.
  std::optional<std::chrono::microseconds> before_sleep();
  bool await(Wait& wait) override;
  // Is anything of the session on the device, or on its way there? Its turn on the GPU is given up.
  bool has_work();

 private:
  struct Order {
    int gpu = 0;
    uint64_t bytes = 0, most = 0, keep = 0;
    bool at_once = false;
    Clock::time_point came{};
  };

  std::optional<Order> order();
  void answer(const Order& order, uint64_t moved);
  // True: there is no order any more.
  bool follow(const Order& order);
  void give_way();
  bool bring_back();
  // The memory is not to go again for some time; the longer it took to come back, the longer.
  void stay(std::chrono::nanoseconds took);

  Executor& session_;
  bool on_ = false;
  Clock::time_point idle_since_{};
  uint64_t question_ = 0;  // of the last time when room was asked for

  std::mutex mutex_;  // what follows
  std::optional<Order> order_;
  std::optional<server::ControlHeader> unsent_;  // answer, while poold does not read
  server::ControlHeader patience_;               // the last answer about that
};

}  // namespace gpupool::worker
