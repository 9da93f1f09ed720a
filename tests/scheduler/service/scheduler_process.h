// A real pool-scheduler for tests: on a free loopback port, with a store and a key in a folder of its own, ready when start() returns.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class SchedulerProcess {
 public:
  explicit SchedulerProcess(std::vector<std::string> more_options = {}) : options_(std::move(more_options)) { start(); }
  // Again with the same store, key and port. Throws with its output when it does not come up.
  void start();
  void kill();  // -9
  int stop();   // SIGTERM; the exit status

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string key_file() const { return folder_.path() / "key.pem"; }
  std::string audit_file() const { return folder_.path() / "audit.json"; }
  const TemporaryFolder& folder() const { return folder_; }
  Process& process() { return *process_; }
  std::string log() const { return process_->output(); }
  bool await_log(const std::string& text) const { return process_->await_output(text); }

 private:
  TemporaryFolder folder_;
  const std::vector<std::string> options_;
  std::unique_ptr<Process> process_;
  int port_ = 0;
};

}  // namespace gpupool::testing
