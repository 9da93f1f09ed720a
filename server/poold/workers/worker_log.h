// Reads a worker's stdout, stderr and log, which are one socket. Log lines are validated and written to
// poold's log with the worker's PID and session; other output is escaped and logged as `worker_output`. The
// length of lines and their rate are limited, so that a compromised worker can neither forge another's lines
// nor flood the log.
//
// A socket, because reading a pipe blocks while a writer is inside write(), and a worker can stay there
// (waiting for memory). WorkerPool owns it, on poold's thread. Reads a bounded amount without blocking, and
// accepts no descriptors.
#pragma once
#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/result.h"

namespace gpupool::server {

class WorkerLog : public std::enable_shared_from_this<WorkerLog> {
 public:
  static constexpr size_t kMostLine = 4096;
  static constexpr double kLinesPerSecond = 100, kMostAtOnce = 1000;

  // Takes ownership of `socket`, poold's end, which must be non-blocking.
  WorkerLog(asio::io_context& context, int socket, pid_t worker);

  // Starts reading. Calls `misbehaves` once, with the reason, if the worker sends descriptors, and stops
  // reading then.
  void watch(std::function<void(const std::string& why)> misbehaves);
  void set_session(uint64_t session) { session_ = session; }
  int descriptor() { return socket_.native_handle(); }
  // The line that the worker has not ended yet; for this process's next program (server/poold/upgrade).
  const std::string& unfinished_line() const { return line_; }
  void restore(std::string unfinished_line) { line_ = std::move(unfinished_line); }
  // Reads the rest after the worker has ended, and closes the socket, even if another process holds the other
  // end.
  void finish();

 private:
  void await_more();
  Result<void> read_some();
  void take(std::string_view bytes);
  void end_line();
  bool may_write();
  void report_lost();

  asio::posix::stream_descriptor socket_;
  std::function<void(const std::string& why)> misbehaves_;
  const pid_t worker_;
  uint64_t session_ = 0;  // 0: none yet
  std::string line_;
  size_t truncated_bytes_ = 0;  // bytes beyond kMostLine in this line
  double allowance_ = kMostAtOnce;
  std::chrono::steady_clock::time_point since_;
  uint64_t lost_ = 0;
};

}  // namespace gpupool::server
