// The process that connected to a Unix socket, to learn that it has ended. Any thread.
#pragma once
#include <memory>

namespace gpupool::server {

class PeerProcess {
 public:
  // Returns null if the process is unknown: the socket is no Unix socket, or the process has ended already or
  // belongs to a PID namespace that this process does not see.
  static std::shared_ptr<const PeerProcess> of(int socket);
  explicit PeerProcess(int pidfd) : pidfd_(pidfd) {}
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  bool has_ended() const;
  int descriptor() const { return pidfd_; }

 private:
  const int pidfd_;
};

}  // namespace gpupool::server
