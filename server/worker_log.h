// Reads a worker's stdout, stderr and log, which are one socket of its own: lines of its log go into poold's, checked and marked with the
// worker's number and its session; anything else goes there escaped, as `worker_output`. Bounded in a line's length and in lines for each second, so
// that a worker that has been taken over can neither forge another's lines nor fill the log.
//
// A socket, because whoever reads a pipe waits for a writer that is in the midst of writing, and a worker can stay there (memory that does not come).
// poold's one thread, which reads without blocking and a bounded amount at a time, and takes no descriptors.
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

#include "protocol/wire/result.h"

namespace gpupool::server {

class WorkerLog : public std::enable_shared_from_this<WorkerLog> {
 public:
  static constexpr size_t kMostLine = 4096;
  static constexpr double kLinesPerSecond = 100, kMostAtOnce = 1000;

  // Takes over poold's end of the socket, which does not block.
  WorkerLog(asio::io_context& context, int socket, pid_t worker);

  // `misbehaves` is told, once and with the reason, where the worker sends what poold does not take; no more is read then.
  void watch(std::function<void(const std::string& why)> misbehaves);
  void set_session(uint64_t session) { session_ = session; }
  // The worker has ended: takes what is left, and closes the socket, whoever else has its other end.
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
  size_t cut_ = 0;  // bytes of the line that had no room
  double allowance_ = kMostAtOnce;
  std::chrono::steady_clock::time_point since_;
  uint64_t lost_ = 0;
};

}  // namespace gpupool::server
