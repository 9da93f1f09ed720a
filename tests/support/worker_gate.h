// Keeps further workers of a poold with the fake device (tests/server/fake_device.cc) from becoming ready, so
// that clients wait for one. One thread; failures are exceptions.
#pragma once
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/processes.h"

namespace gpupool::testing {

class WorkerGate {
 public:
  WorkerGate() {
    if (file_ < 0) throw std::runtime_error("cannot open " + path_);
  }
  ~WorkerGate() { ::close(file_); }
  WorkerGate(const WorkerGate&) = delete;
  WorkerGate& operator=(const WorkerGate&) = delete;

  // For poold. Confined workers could not open the file. With the log level a test can await "worker_ready"
  // of the only idle worker.
  std::vector<std::string> options() const {
    return {"--no-sandbox", "--idle-workers", "1", "--log-level", "debug"};
  }
  Environment environment() const { return {{"FAKE_DEVICE", "gate"}, {"FAKE_DEVICE_GATE", path_}}; }
  // Workers that start from now on wait until open().
  void close() const { lock(LOCK_EX); }
  void open() const { lock(LOCK_UN); }

 private:
  void lock(int how) const {
    if (::flock(file_, how) != 0) throw std::runtime_error("cannot lock " + path_);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.write("gate", "");
  const int file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
};

}  // namespace gpupool::testing
