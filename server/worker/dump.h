// What the session is doing at one moment (protocol/control/dump.proto): the worker's part of `pool-admin dump`, which must be there when the
// executor is stuck inside a driver call. So no describe() takes a lock that is held during driver calls or while sending.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace gpupool::admin {
class WorkerDump;
}

namespace gpupool::worker {

class Executor;

constexpr int kMostListed = 32;      // of each list
constexpr int kMostKeptListed = 20;  // of the backlog

// Fits server::kMaxControlPayload. Any thread.
std::string dump(Executor& session);
// poold asks for dumps until the object is gone; the control thread answers, unless it is inside a driver call itself (offers.h).
class DumpServer {
 public:
  explicit DumpServer(Executor& session);
  ~DumpServer();
  DumpServer(const DumpServer&) = delete;
  DumpServer& operator=(const DumpServer&) = delete;

 private:
  Executor& session_;
};

inline uint64_t age_ms(std::chrono::steady_clock::time_point since) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - since).count());
}

}  // namespace gpupool::worker
