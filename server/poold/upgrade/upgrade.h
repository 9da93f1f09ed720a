// Replaces poold's program by the one that is installed now, while sessions run (docs/adr/0039-upgrades.md).
// The daemon owns it; poold's thread.
//
// 0. poold waits for what it must not interrupt: threads that suspend or resume a session, and the audit
//    file. It begins no more of it. What takes longer than kPatience refuses the upgrade.
// 1. The installed program checks that it could take over (successor.h). If not, nothing changes. It checks
//    again as the last step before 4.
// 2. poold accepts no connections, which wait in the listeners' queues, and finishes what it cannot hand
//    over: handshakes, clients that wait for a worker, questions between workers. What takes longer than
//    kPatience is refused.
// 3. Workers without a session end.
// 4. poold executes the program, which takes over the listeners, the workers and all that poold knows of
// them.
//
// Sessions notice none of it: their connections are their workers'. Turns on a GPU go on, but none changes
// for as long as the new program takes to start.
#pragma once
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/blocked_signals.h"
#include "server/poold/upgrade/successor.h"

namespace gpupool::server {

class Upgrade {
 public:
  static constexpr std::chrono::milliseconds kPatience{5'000};
  // What it needs of the daemon.
  struct Host {
    std::function<void()> hold_work;  // begin nothing that would become an obstacle
    std::function<void()> release_work;
    std::function<std::string()> obstacle;  // why poold cannot be upgraded now; empty: it can
    std::function<upgrade::State()> state;
    std::function<void()> close_doors;  // accept no connections
    std::function<bool()> has_waiting;  // something that cannot be handed over
    std::function<void()> give_up_waiting;
    std::function<void()> end_spare_workers;  // and services whose callers may be cut off
    std::function<bool()> has_spare_workers;
    std::function<bool()> is_closing;  // descriptors, in child processes
    std::function<void()> undo;        // go on as before; includes release_work
  };
  // The version of the program that takes over soon, or why none does. ErrorCode::refused: it cannot, or an
  // upgrade is under way.
  using Begun = std::function<void(const Result<std::string>&)>;

  // `arguments`: of main().
  Upgrade(asio::io_context& context, std::vector<std::string> arguments, Host host)
      : context_(context), arguments_(std::move(arguments)), host_(std::move(host)), timer_(context) {}
  Upgrade(const Upgrade&) = delete;
  Upgrade& operator=(const Upgrade&) = delete;

  // Calls back once, before the program is replaced.
  void begin(Begun begun);
  void stop();  // poold ends

 private:
  using Clock = std::chrono::steady_clock;

  void check();
  void refuse(const Error& error);
  void close_doors();
  void await(std::function<bool()> pending, std::function<void()> then);
  void end_spare_workers();
  void check_again();
  void execute_program();
  void abort(const std::string& why);

  asio::io_context& context_;
  const std::vector<std::string> arguments_;
  const Host host_;
  asio::steady_timer timer_;
  Program program_;
  Begun begun_;  // null once it was called
  Clock::time_point deadline_;
  std::optional<BlockedSignals> blocked_;  // shortly before the program is executed
  bool under_way_ = false;
  bool stopped_ = false;
};

}  // namespace gpupool::server
