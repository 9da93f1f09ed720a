#include "server/sockets/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // of Linux 6.5
#endif

namespace gpupool::server {

// Before Linux 6.5, another process may have got the PID of the one that has connected.
std::shared_ptr<const PeerProcess> PeerProcess::of(int socket) {
  int family = 0;
  ucred peer{};
  socklen_t family_size = sizeof family, size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &family_size) != 0 || family != AF_UNIX)
    return nullptr;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return nullptr;
  int pidfd = -1;
  socklen_t pidfd_size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &pidfd_size) != 0)
    pidfd = errno == ENOPROTOOPT ? static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)) : -1;
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
