// Connects to a local server from a chosen loopback address, so that the server sees another peer.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace gpupool::testing {

// Returns the socket of a TCP connection from `address` to 127.0.0.1, or -1. Closing it sends RST, which
// leaves no port in TIME_WAIT. With `flags` SOCK_NONBLOCK the connection may not be established yet.
inline int connect_from(const char* address, uint16_t port, int flags = 0) {
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (made < 0) return -1;
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  to.sin_port = htons(port);
  ::inet_pton(AF_INET, address, &from.sin_addr);
  ::inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(made, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  const bool connected =
      ::bind(made, reinterpret_cast<sockaddr*>(&from), sizeof from) == 0 &&
      (::connect(made, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS);
  if (connected) return made;
  ::close(made);
  return -1;
}

}  // namespace gpupool::testing
