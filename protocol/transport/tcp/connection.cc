#include "protocol/transport/tcp/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "protocol/transport/tcp/address.h"

namespace gpupool::transport::tcp {
namespace {

using std::chrono::milliseconds;

// Has the kernel probe the peer of an idle connection, and give up after about `timeout` without an answer.
void probe_when_idle(int socket, milliseconds timeout) {
  const int seconds = static_cast<int>(std::clamp<int64_t>((timeout.count() + 999) / 1000, 1, 3600));
  const int idle = std::max(1, seconds / 3);
  const int interval = std::max(1, seconds * 2 / 9);
  const int count = std::clamp((seconds - idle) / interval, 1, 3);
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

// For connections within one host: data that waits in large buffers has left the CPU cache by the time it is
// read, which halves the bandwidth. Between hosts the kernel's tuning is kept, which long, fast networks
// need.
void keep_data_in_cache(int socket) {
  const int bytes = 256 * 1024;
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace

// TCP_USER_TIMEOUT would be simpler, but it also ends a connection whose peer is alive and merely does not
// read (a program that computes, or is stopped in a debugger). Two unanswered retransmissions or window
// probes are required, because a live peer's last acknowledgement can be old where the kernel probes rarely.
bool TcpConnection::peer_is_gone(milliseconds timeout) const {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (info.tcpi_retransmits < 2 && info.tcpi_probes < 2) return false;
  return milliseconds(info.tcpi_last_ack_recv) >= timeout;
}

Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    return refuse_descriptor(descriptor, error == ENOTCONN ? ErrorCode::lost : ErrorCode::invalid,
                             "cannot take over a connection", error);
  }
  const int on = 1;
  // Commands are batched by the sender: Nagle's algorithm would only add delay. The call fails if the socket
  // is not TCP.
  if (::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    return refuse_descriptor(descriptor, ErrorCode::invalid, "cannot take over a connection that is not TCP",
                             errno);
  }
  if (!prepare_socket(descriptor)) {
    return refuse_descriptor(descriptor, ErrorCode::unavailable, "cannot prepare a connection", errno);
  }
  probe_when_idle(descriptor, options.dead_peer_timeout);
  if (options.bulk && is_same_host(descriptor)) keep_data_in_cache(descriptor);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0)
    return refuse_descriptor(descriptor, ErrorCode::unavailable, "cannot create an eventfd", errno);
  return std::unique_ptr<Connection>(
      std::make_unique<TcpConnection>(descriptor, wake, address_text(address), options));
}

}  // namespace gpupool::transport::tcp
