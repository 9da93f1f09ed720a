// The executor: receives a session's commands and executes them in order. A single thread does both; a
// command that must wait is parked with a wait thread, which sends the reply while later commands continue.
// Commands for a stream that waits for the client are kept in the backlog (backlog.h).
//
// The handlers of single commands are in handlers/. All functions: the executor's thread, which is the caller
// of run().
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocol/driver/cuda_header.h"
#include "server/worker/session/backlog.h"
#include "server/worker/session/command.h"

namespace gpupool::worker {

class Session;

class Executor {
 public:
  explicit Executor(Session& session) : session_(session) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs until the client leaves or the session has to end. Returns true after an orderly end.
  bool run();
  // Call between two commands. Answers commands whose memory has been zeroed, and executes kept commands
  // whose gates have opened. Returns false if the session is over.
  bool settle();
  // Executes a command that another worker sends (migration/adoption.h). The reply stays in Replies::body.
  // nullopt: it is malformed.
  std::optional<CUresult> execute_adopted(const wire::CommandHeader& header, std::span<const std::byte> body);
  // The number of the last command; the next one must have the number after it.
  uint64_t last_sequence() const { return last_sequence_; }
  void set_last_sequence(uint64_t sequence) { last_sequence_ = sequence; }
  // Postpones the reply to the current command: calling the returned function on this thread sends it.
  std::function<void(CUresult)> answer_later();
  // Call before sleeping until the next command. Returns the longest time to sleep, if limited.
  std::optional<std::chrono::microseconds> before_sleep();

 private:
  bool load();
  bool receive(const wire::CommandHeader& header);
  // Keeps the command in the backlog if it has to wait, or answers it if it may not be kept. Returns whether
  // it did either. *alive: false if the session is over.
  bool keep(Command& command, bool* alive);
  bool run_backlog();
  bool execute_kept(Backlog::KeptCommand& kept);
  bool replay(Command& command);
  // Waits while the backlog is too large. Returns false if the session is over.
  bool make_room();
  struct Postponed;
  Outcome execute(Command& command);
  Outcome execute_now(Command& command);
  Outcome execute_row(Command& command);
  void note(const Command& command, wire::Reader body);
  void unload_postponed();
  bool finish(const Command& command, const Outcome& outcome);

  static constexpr std::chrono::microseconds kShortestSleep{500};  // while frees are pending

  Session& session_;
  struct RowFunction {
    void* address;
    const char* driver_name;  // null: the address is a wrapper, which reports driver functions itself
  };
  std::vector<RowFunction> functions_;    // by the row's position in the call table
  std::shared_ptr<Postponed> postponed_;  // set by answer_later() for the current command
  uint64_t last_sequence_ = 0;
  std::chrono::microseconds next_sleep_ = kShortestSleep;
};

}  // namespace gpupool::worker
