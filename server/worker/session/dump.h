// A snapshot of the session's activity (protocol/control/dump.proto): the worker's part of `pool-admin dump`.
// It must work while the executor is stuck inside a driver call, so describe() functions take no lock that is
// held during driver calls or while sending.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace gpupool::admin {
class WorkerDump;
}

namespace gpupool::worker {

class Session;

constexpr int kMostListed = 32;      // entries per list
constexpr int kMostKeptListed = 20;  // entries of the backlog's list

// Returns a serialized WorkerDump of at most server::kMaxControlPayload bytes. Any thread.
std::string dump(Session& session);
// Answers poold's requests for dumps during its lifetime, on the control thread. That thread can be inside a
// driver call itself (exported_handles.h), which delays the answer.
class DumpServer {
 public:
  explicit DumpServer(Session& session);
  ~DumpServer();
  DumpServer(const DumpServer&) = delete;
  DumpServer& operator=(const DumpServer&) = delete;

 private:
  Session& session_;
};

inline uint64_t age_ms(std::chrono::steady_clock::time_point since) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - since)
          .count());
}

}  // namespace gpupool::worker
