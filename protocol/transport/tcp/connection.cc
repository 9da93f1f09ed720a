#include "protocol/transport/tcp/connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "protocol/transport/tcp/address.h"

namespace gpupool::transport::tcp {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxBuffersPerSend = 1024;  // IOV_MAX on Linux

// Idle connections: the kernel probes the peer and gives up after about `timeout` without an answer.
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

// A connection within one machine: data that waits in large buffers has left the cache by the time it is read, which
// halves the bandwidth. Between machines the kernel's tuning is left alone: long, fast networks need it.
void keep_data_in_cache(int socket) {
  const int bytes = 256 * 1024;
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

bool is_loss(int error) {
  switch (error) {
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENOTCONN:
      return true;
    default:
      return false;
  }
}

}  // namespace

TcpConnection::TcpConnection(int socket, int wake, std::string peer, const Options& options)
    : socket_(socket), wake_(wake), peer_(std::move(peer)), dead_peer_timeout_(options.dead_peer_timeout) {}

TcpConnection::~TcpConnection() {
  if (socket_ >= 0) ::close(socket_);
  ::close(wake_);
}

Error TcpConnection::failure(int error, const char* doing) const {
  if (closed_.load(std::memory_order_acquire))
    return {ErrorCode::closed, "connection to " + peer_ + " was closed here"};
  const std::string text = std::string(doing) + " " + peer_ + ": " + std::generic_category().message(error);
  if (is_loss(error)) return {ErrorCode::lost, "connection lost while " + text};
  return {ErrorCode::unavailable, "failed while " + text};
}

Result<size_t> TcpConnection::send_some(std::span<const iovec> buffers) {
  while (!buffers.empty() && buffers.front().iov_len == 0) buffers = buffers.subspan(1);
  if (buffers.empty()) return size_t{0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers.data());  // sendmsg does not write to it
  message.msg_iovlen = std::min(buffers.size(), kMaxBuffersPerSend);
  while (true) {
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return failure(errno, "sending to");
  }
}

Result<size_t> TcpConnection::receive_some(std::span<std::byte> buffer) {
  if (buffer.empty()) return size_t{0};
  while (true) {
    const ssize_t received = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0) {
      if (closed_.load(std::memory_order_acquire)) return failure(0, "receiving from");
      return Error{ErrorCode::closed, peer_ + " closed the connection"};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return failure(errno, "receiving from");
  }
}

// True when the peer's machine has been silent for dead_peer_timeout although it owes an answer.
// TCP_USER_TIMEOUT would be simpler, but it also kills a connection whose peer is alive and merely reads
// nothing (a program that computes, or is stopped in a debugger, while data for it waits). Two unanswered
// retransmissions or window probes are asked for, because an alive peer's last answer can be old where the
// kernel probes rarely.
bool TcpConnection::peer_is_gone() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  if (info.tcpi_retransmits < 2 && info.tcpi_probes < 2) return false;
  return milliseconds(info.tcpi_last_ack_recv) >= dead_peer_timeout_;
}

bool TcpConnection::take_interrupt() {
  uint64_t count = 0;
  return ::read(wake_, &count, sizeof count) == sizeof count;
}

Result<Connection::Ready> TcpConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
  const milliseconds check_every = std::max(milliseconds(50), dead_peer_timeout_ / 4);
  while (true) {
    milliseconds limit = check_every;
    bool last_turn = false;
    if (deadline) {
      const auto left = std::chrono::ceil<milliseconds>(*deadline - Clock::now());
      last_turn = left <= limit;
      limit = std::clamp(left, milliseconds(0), limit);
    }
    const short wished = static_cast<short>((for_receive ? POLLIN : 0) | (for_send ? POLLOUT : 0));
    // Without a wish, even a hang-up must not end the wait.
    pollfd polled[2] = {{wished != 0 ? socket_ : -1, wished, 0}, {wake_, POLLIN, 0}};
    const int count = ::poll(polled, 2, static_cast<int>(limit.count()));
    if (count < 0) {
      if (errno == EINTR) continue;
      return failure(errno, "waiting for");
    }
    const bool interrupted = polled[1].revents != 0 && take_interrupt();
    const short seen = polled[0].revents;
    const bool broken = (seen & (POLLERR | POLLHUP | POLLNVAL)) != 0;  // the next call on the socket says how
    const bool receive = for_receive && ((seen & POLLIN) != 0 || broken);
    const bool send = for_send && ((seen & POLLOUT) != 0 || broken);
    if (receive && send) return Ready::both;
    if (receive) return Ready::receive;
    if (send) return Ready::send;
    if (interrupted) return Ready::none;
    if (count == 0 && wished != 0 && peer_is_gone()) {
      return Error{ErrorCode::lost, "connection lost: no sign of life from " + peer_ + " for " +
                                        std::to_string(dead_peer_timeout_.count()) + " ms"};
    }
    if (last_turn && count == 0) return Ready::none;
  }
}

void TcpConnection::interrupt() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);  // full: one is pending already
}

void TcpConnection::close() {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

int TcpConnection::release_descriptor() {
  return std::exchange(socket_, -1);
}

Result<std::unique_ptr<Connection>> adopt(int descriptor, const Options& options) {
  const auto refuse = [descriptor](ErrorCode code, const std::string& doing, int error) -> Error {
    if (descriptor >= 0) ::close(descriptor);
    return {code, doing + ": " + std::generic_category().message(error)};
  };
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    return refuse(error == ENOTCONN ? ErrorCode::lost : ErrorCode::invalid, "cannot take over a connection",
                  error);
  }
  const int on = 1;
  // Commands are batched by the sender itself: Nagle's algorithm would only add delay. (It fails where it is
  // no TCP.)
  if (::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    return refuse(ErrorCode::invalid, "cannot take over a connection that is not TCP", errno);
  }
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    return refuse(ErrorCode::unavailable, "cannot prepare a connection", errno);
  }
  probe_when_idle(descriptor, options.dead_peer_timeout);
  if (options.bulk && is_same_host(descriptor)) keep_data_in_cache(descriptor);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return refuse(ErrorCode::unavailable, "cannot create an eventfd", errno);
  return std::unique_ptr<Connection>(
      std::make_unique<TcpConnection>(descriptor, wake, address_text(address), options));
}

}  // namespace gpupool::transport::tcp
