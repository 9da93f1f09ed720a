// A real poold for tests: on a free loopback port (unless `more_options` say --listen), ready when the
// constructor returns, ended by the destructor.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "protocol/transport/transport.h"
#include "tests/support/processes.h"

namespace gpupool::testing {

constexpr size_t kIdleWorkers = 2;  // poold's default
inline const std::vector<std::string> kTellsOfWorkers{"--log-level", "debug"};

std::string program_path(const std::string& name);  // build/<preset>/bin/NAME
// A path from this program's folder on, where it exists: of a build folder that was moved to another machine. Else the second one.
std::string moved_path(const std::string& path, const std::string& otherwise);

class PooldProcess {
 public:
  // `device` as in --device; `launcher` has the words of a program that becomes poold. Throws with poold's output when it does not come up.
  explicit PooldProcess(const std::string& device, const std::vector<std::string>& more_options = {},
                        const Environment& environment = {}, const std::vector<std::string>& launcher = {});
  // What a sanitizer found in poold or a worker, whose output nobody reads, ends the test program.
  ~PooldProcess();

  transport::Endpoint endpoint() const { return {"tcp", "127.0.0.1", port_}; }
  std::string url() const { return endpoint().text(); }
  uint16_t port() const { return port_; }
  pid_t pid() const { return process_->pid(); }
  std::vector<pid_t> workers() const;
  size_t descriptors() const;  // 0, and a line that says so, where they cannot be counted
  std::string admin_socket() const { return folder_.path() / "admin.sock"; }  // unless `more_options` say --admin-socket
  std::string port_file() const { return folder_.path() / "port"; }
  Process& process() { return *process_; }
  // The lines that are complete.
  std::string log() const;
  bool await_log(const std::string& text) const { return await_log(text, 1); }
  // Waits until `text` stands in the log `count` times.
  bool await_log(const std::string& text, size_t count) const;
  // Waits until poold, started with kTellsOfWorkers, has done with so many sessions and has kIdleWorkers that wait for clients.
  bool await_rest(size_t sessions) const {
    return await_log("worker_gone", sessions) && await_log("worker_ready", kIdleWorkers + sessions);
  }
  // SIGTERM; the exit status.
  int stop();

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Process> process_;
  uint16_t port_ = 0;
};

size_t occurrences(const std::string& text, const std::string& part);

}  // namespace gpupool::testing
