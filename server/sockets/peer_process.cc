#include "server/sockets/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpupool::server {

// If the process ends before pidfd_open() and its PID is reused, this is another process, which may outlive
// the session: then the end of the client's process is not noticed.
std::shared_ptr<const PeerProcess> PeerProcess::of(int socket) {
  int family = 0;
  ucred peer{};
  socklen_t family_size = sizeof family, size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &family_size) != 0 || family != AF_UNIX)
    return nullptr;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return nullptr;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
  return pidfd < 0 ? nullptr : std::make_shared<const PeerProcess>(pidfd);
}

PeerProcess::~PeerProcess() {
  ::close(pidfd_);
}

bool PeerProcess::has_ended() const {
  pollfd ended{.fd = pidfd_, .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) == 1;
}

}  // namespace gpupool::server
