// A real poold process for tests, on a free loopback port unless `more_options` contain --listen. It is ready
// when the constructor returns; the destructor kills it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "protocol/transport/transport.h"
#include "tests/support/processes.h"

namespace gpupool::testing {

constexpr size_t kIdleWorkers = 2;  // poold's default
inline const std::vector<std::string> kTellsOfWorkers{"--log-level", "debug"};

// Returns the path of one of gpupool's programs, usually build/<preset>/bin/NAME.
std::string program_path(const std::string& name);
// Returns `path` relative to the folder of this test program if that exists, which it does in a moved build
// folder; else `otherwise`.
std::string moved_path(const std::string& path, const std::string& otherwise);

class PooldProcess {
 public:
  // `device`: for --device. `launcher`: a command that executes poold, e.g. nice. Throws std::runtime_error
  // with poold's output if poold does not start.
  explicit PooldProcess(const std::string& device, const std::vector<std::string>& more_options = {},
                        const Environment& environment = {}, const std::vector<std::string>& launcher = {});
  // Ends the test program with status 66 if a sanitizer reported an error in poold or a worker.
  ~PooldProcess();

  transport::Endpoint endpoint() const { return {"tcp", "127.0.0.1", port_}; }
  std::string url() const { return endpoint().text(); }
  uint16_t port() const { return port_; }
  pid_t pid() const { return process_->pid(); }
  std::vector<pid_t> workers() const;
  size_t descriptors() const;  // 0, after printing a "SKIPPED" line, if the kernel does not allow counting
  std::string admin_socket() const { return folder_.path() / "admin.sock"; }  // by default
  std::string port_file() const { return folder_.path() / "port"; }
  Process& process() { return *process_; }
  // Returns the complete lines of poold's output.
  std::string log() const;
  bool await_log(const std::string& text) const { return await_log(text, 1); }
  // Waits until `text` occurs at least `count` times in the log.
  bool await_log(const std::string& text, size_t count) const;
  // Number of workers that poold keeps for further sessions: the last --idle-workers, or its default.
  size_t idle_workers() const { return idle_workers_; }
  // Waits until poold, started with kTellsOfWorkers, has ended `sessions` workers and has all idle ones
  // again.
  bool await_rest(size_t sessions) const {
    return await_log("worker_gone", sessions) && await_log("worker_ready", idle_workers_ + sessions);
  }
  // Sends SIGTERM and returns the exit status.
  int stop();

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Process> process_;
  uint16_t port_ = 0;
  size_t idle_workers_ = kIdleWorkers;
};

size_t occurrences(const std::string& text, const std::string& part);

}  // namespace gpupool::testing
