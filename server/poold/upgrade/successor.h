// Executes another program in this process, in place of the running one: it has the same PID, children and
// descriptors, and gets upgrade::State. For poold's upgrades (upgrade.h), on poold's thread.
//
// The state has secrets, so it is never in a file or memory file: /proc would let a process of the same user
// open it before the new program has protected itself. A child of the old program sends it over a socket.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

// Increase it if older programs would lose something of the state. 2: it has suspended sessions.
constexpr uint32_t kStateFormat = 2;
// The lowest kStateFormat of a program that can take over the state.
uint32_t format_needed(const upgrade::State& state);

struct Program {
  std::string path;
  std::vector<std::string> arguments;  // with the program's name
};

// The file that this process executes, or the one that has replaced it at its path. `arguments`: of main().
Result<Program> installed_program(std::vector<std::string> arguments);

// Replaces this program. Returns only on failure; this program then goes on, with the same descriptors. The
// next program has the descriptors of the state, and all signals blocked.
Error execute(const Program& program, const upgrade::State& state);

struct PreviousProgram {
  upgrade::State state;
  bool only_check = false;  // see CheckedProgram
};
bool has_previous_program();
// Receives the state from the program that this process executed before; nullopt: there was none. Call it
// once, before other threads start. ErrorCode::malformed: it is not usable; the message says why.
Result<std::optional<PreviousProgram>> receive_state();
// Call it when the state has been received, so that child processes do not get its descriptors.
void close_on_exec(const upgrade::State& state);
// Call it when signals are handled.
void unblock_signals();

// Starts the program as a child that checks whether it could take over, by its arguments, configuration and
// the state, and ends (PreviousProgram::only_check). Nothing else changes. A program that others can write or
// replace is not started.
class CheckedProgram : public std::enable_shared_from_this<CheckedProgram> {
 public:
  // `version`: of the checked program, as it prints it; or the reason why it cannot take over.
  using Checked = std::function<void(const Result<std::string>& version)>;
  // Calls back once, after this has returned.
  static void start(asio::io_context& context, const Program& program, const upgrade::State& state,
                    Checked checked);

 private:
  CheckedProgram(asio::io_context& context, Checked checked)
      : output_(context), ended_(context), timeout_(context), checked_(std::move(checked)) {}
  void await_end();
  void finish();

  pid_t pid_ = -1, sender_ = -1;
  asio::posix::stream_descriptor output_;
  asio::posix::stream_descriptor ended_;  // the child's pidfd
  asio::steady_timer timeout_;
  Checked checked_;
};

}  // namespace gpupool::server
