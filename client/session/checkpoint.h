// The sessions of a process, this one or another, for cuCheckpointProcess... (client/api/checkpoint.cc).
// Asks poold over separate connections (protocol/wire/checkpoint.h), because this process's own sessions may
// be locked. Not thread-safe; one thread per object.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/lease/file.h"
#include "client/process/settings.h"
#include "protocol/driver/cuda_header.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/checkpoint.h"

namespace gpupool::client {

// One process's sessions with all servers of this process.
class CheckpointedProcess {
 public:
  // CUDA_ERROR_INVALID_VALUE: no server has a session of that process for this tenant.
  // CUDA_ERROR_DEVICE_UNAVAILABLE: a server could not be asked.
  static CUresult find(const Settings& settings, const std::vector<LeasedServer>& servers, int pid,
                       std::optional<CheckpointedProcess>* found);

  // Returns the earliest state (in the order of ProcessState) among the sessions, which may differ.
  wire::ProcessState state() const;
  // Applies the action to all sessions. If one refuses, rolls back the others. `timeout_ms` 0: no timeout.
  CUresult apply(wire::CheckpointAction action, unsigned timeout_ms = 0);

 private:
  struct Server {
    std::string name;
    std::unique_ptr<transport::Connection> connection;
    std::vector<wire::ProcessSession> sessions;
  };
  explicit CheckpointedProcess(int pid, std::chrono::milliseconds dead_peer_timeout)
      : pid_(pid), dead_peer_timeout_(dead_peer_timeout) {}
  // CUDA_ERROR_DEVICE_UNAVAILABLE: the connection to the server failed.
  CUresult query(Server& server, const wire::CheckpointQuestion& question,
                 std::vector<wire::ProcessSession>* sessions) const;

  int pid_;
  std::chrono::milliseconds dead_peer_timeout_;
  std::vector<Server> servers_;  // only servers that have sessions of the process
};

}  // namespace gpupool::client
