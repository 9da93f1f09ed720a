// Another process's sessions, or this one's, as cuCheckpointProcess... sees them: poold is asked over a connection of its own
// (protocol/wire/checkpoint.h), since this process may be locked itself. One thread.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/lease/file.h"
#include "client/settings.h"
#include "protocol/cuda/cuda_header.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/checkpoint.h"

namespace gpupool::client {

// A process's sessions with all of this process's servers.
class CheckpointedProcess {
 public:
  // CUDA_ERROR_INVALID_VALUE: no server has a session of that process for this tenant. CUDA_ERROR_DEVICE_UNAVAILABLE: a server cannot be asked.
  static CUresult find(const Settings& settings, const std::vector<LeasedServer>& servers, int pid, std::optional<CheckpointedProcess>* found);

  // Sessions that differ: the state that an action has to go on from.
  wire::ProcessState state() const;
  // Of all its sessions; where one refuses, the others go back to where they were. `timeout_ms` 0: none.
  CUresult change(wire::CheckpointAction action, unsigned timeout_ms = 0);

 private:
  struct Server {
    std::string name;
    std::unique_ptr<transport::Connection> connection;
    std::vector<wire::ProcessSession> sessions;
  };
  explicit CheckpointedProcess(int pid, std::chrono::milliseconds dead_peer_timeout) : pid_(pid), dead_peer_timeout_(dead_peer_timeout) {}
  // CUDA_ERROR_DEVICE_UNAVAILABLE: the server is lost.
  CUresult ask(Server& server, const wire::CheckpointQuestion& question, std::vector<wire::ProcessSession>* sessions) const;

  int pid_;
  std::chrono::milliseconds dead_peer_timeout_;
  std::vector<Server> servers_;  // those that have some
};

}  // namespace gpupool::client
