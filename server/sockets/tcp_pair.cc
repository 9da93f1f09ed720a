#include "server/sockets/tcp_pair.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace gpupool::server {
namespace {

sockaddr_in name_of(int socket, decltype(::getsockname)* get) {
  sockaddr_in name{};
  socklen_t size = sizeof name;
  if (get(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0) name.sin_port = 0;
  return name;
}

bool same(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_port != 0 && a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

int make_socket() {
  return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

// Over loopback the connection is usually complete when connect() returns; on some hosts another processor
// delivers its packets. Nobody but the kernel can delay it.
constexpr int kMostMilliseconds = 10, kMostStrangers = 4;

// Accepts the connection that comes from `connecting`. Another process may connect first.
int accept_from(int listening, int connecting) {
  for (int strangers = 0; strangers < kMostStrangers;) {
    const int accepted = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    pollfd arriving{listening, POLLIN, 0};
    if (accepted < 0 && (errno != EAGAIN || ::poll(&arriving, 1, kMostMilliseconds) != 1)) return -1;
    if (accepted < 0) continue;
    if (same(name_of(accepted, ::getpeername), name_of(connecting, ::getsockname))) return accepted;
    ::close(accepted);
    ++strangers;
  }
  return -1;
}

}  // namespace

std::optional<std::array<int, 2>> make_tcp_pair() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int listening = make_socket(), connecting = make_socket();
  int accepted = -1;
  if (listening >= 0 && connecting >= 0 &&
      ::bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(listening, kMostStrangers) == 0) {
    address = name_of(listening, ::getsockname);
    (void)::connect(connecting, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    accepted = accept_from(listening, connecting);
  }
  if (listening >= 0) ::close(listening);
  if (accepted >= 0) return std::array{connecting, accepted};
  if (connecting >= 0) ::close(connecting);
  return std::nullopt;
}

}  // namespace gpupool::server
