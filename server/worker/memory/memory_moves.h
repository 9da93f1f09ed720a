// Oversubscription: moves the session's device memory to host memory when poold orders it and the session has
// no work on the device, and back before the next command that may access it. Runs on the executor's thread
// between two commands or while a command waits for memory, so the moves are invisible to the client.
//
// await() is the wait of a command that finds the device full. Handlers of poold's messages run on the
// control thread; all other functions belong to the executor's thread. Without oversubscription this class
// does nothing.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "server/handover/handover.h"
#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {

class Session;

// True for commands that are not held back while the executor waits for the device: streams may be waiting
// for them, or they access no device memory.
bool must_not_wait(uint16_t command);

class MemoryMoves final : public FullDeviceWaiter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit MemoryMoves(Session& session) : session_(session) {}
  MemoryMoves(const MemoryMoves&) = delete;
  MemoryMoves& operator=(const MemoryMoves&) = delete;

  void begin();
  // No handler of poold's messages runs any more when this returns.
  void end();
  // Call before each command. Moves memory back if the command may access it. Returns false if that failed,
  // after telling the client why.
  bool before_command(uint16_t id);
  void after_command();
  // Call when no command is available. Returns the longest time that the executor may sleep, if limited.
  std::optional<std::chrono::microseconds> before_sleep();
  bool await(Wait& wait) override;
  // True if the session has work on the device or pending. Gives up the session's turn on the GPU.
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
  // Executes the order if possible. Returns true if there is no order any more.
  bool follow(const Order& order);
  void drain_for_move();
  bool move_back_all();
  // Asks poold not to move the memory for some time, which grows with the time that moving it back took.
  void defer_next_move(std::chrono::nanoseconds took);

  Session& session_;
  bool on_ = false;
  Clock::time_point idle_since_{};
  uint64_t question_ = 0;  // id of the last request for room

  std::mutex mutex_;  // guards the rest
  std::optional<Order> order_;
  // An answer that could not be sent because poold is not reading.
  std::optional<server::packet::MovedOut> unsent_;
  server::packet::RoomPatience patience_;  // last message of this kind
};

}  // namespace gpupool::worker
