// A real pool-scheduler for tests: on a free loopback port, with a store and a key in a folder of its own, ready when start() returns: it leads
// then, unless it is one of several.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class SchedulerProcess {
 public:
  explicit SchedulerProcess(std::vector<std::string> more_options = {}) : SchedulerProcess(std::move(more_options), "", "") {}
  // One of several, with this store and key.
  static std::unique_ptr<SchedulerProcess> one_of_several(const std::string& store, const std::string& key_file, std::vector<std::string> more_options = {}) {
    return std::unique_ptr<SchedulerProcess>(new SchedulerProcess(std::move(more_options), store, key_file));
  }
  // Again with the same store, key and port. Throws with its output when it does not come up.
  void start();
  void kill();  // -9
  int stop();   // SIGTERM; the exit status

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string key_file() const { return key_file_.empty() ? std::string(folder_.path() / "key.pem") : key_file_; }
  std::string public_key_file() const;  // for poolds
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
  const std::string store_, key_file_;  // empty: its own
  std::unique_ptr<Process> process_;
  int port_ = 0;
};

}  // namespace gpupool::testing
