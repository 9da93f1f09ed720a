// A real pool-scheduler process for tests, on a free loopback port, with its store and key in a temporary
// folder. It listens when start() returns, and leads unless it is one of several. The destructor kills it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class SchedulerProcess {
 public:
  explicit SchedulerProcess(std::vector<std::string> more_options = {})
      : SchedulerProcess(std::move(more_options), "", "") {}
  // Starts one of several schedulers with a common store and key.
  static std::unique_ptr<SchedulerProcess> one_of_several(const std::string& store,
                                                          const std::string& key_file,
                                                          std::vector<std::string> more_options = {}) {
    return std::unique_ptr<SchedulerProcess>(new SchedulerProcess(std::move(more_options), store, key_file));
  }
  // Starts it again with the same store, key and port. Throws std::runtime_error with its output if it does
  // not start.
  void start();
  void kill();  // SIGKILL
  int stop();   // sends SIGTERM and returns the exit status

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string key_file() const {
    return key_file_.empty() ? std::string(folder_.path() / "key.pem") : key_file_;
  }
  std::string public_key_file() const;  // for poold --pool-public-key
  std::string audit_file() const { return folder_.path() / "audit.json"; }
  const TemporaryFolder& folder() const { return folder_; }
  Process& process() { return *process_; }
  std::string log() const { return process_->output(); }
  bool await_log(const std::string& text) const { return process_->await_output(text); }

 private:
  SchedulerProcess(std::vector<std::string> more_options, std::string store, std::string key_file)
      : options_(std::move(more_options)), store_(std::move(store)), key_file_(std::move(key_file)) {
    start();
  }

  TemporaryFolder folder_;
  const std::vector<std::string> options_;
  const std::string store_, key_file_;  // empty: in folder_
  std::unique_ptr<Process> process_;
  int port_ = 0;
};

}  // namespace gpupool::testing
