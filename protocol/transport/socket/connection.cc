#include "protocol/transport/socket/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "protocol/transport/peer_order.h"

namespace gpupool::transport {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxBuffersPerSend = 1024;  // IOV_MAX on Linux

bool is_loss(int error) {
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENOTCONN: return true;
    default: return false;
  }
}

}  // namespace

bool is_reset(int error) {
  return error == ECONNRESET || error == ECONNABORTED || error == EPIPE;
}

SocketConnection::SocketConnection(int socket, int wake, std::string peer, const Options& options)
    : socket_(socket), wake_(wake), peer_(std::move(peer)), dead_peer_timeout_(options.dead_peer_timeout) {}

SocketConnection::~SocketConnection() {
  if (socket_ >= 0) ::close(socket_);
  ::close(wake_);
}

Error SocketConnection::failure(int error, const char* doing) const {
  if (closed()) return {ErrorCode::closed, "the connection to " + peer_ + " was closed on this side"};
  const std::string text = std::string(doing) + " " + peer_ + ": " + std::generic_category().message(error);
  if (is_reset(error)) return {ErrorCode::reset, "connection lost while " + text};
  if (is_loss(error)) return {ErrorCode::lost, "connection lost while " + text};
  return {ErrorCode::unavailable, "failed while " + text};
}

Result<size_t> SocketConnection::send_some(std::span<const iovec> buffers) {
  while (!buffers.empty() && buffers.front().iov_len == 0) buffers = buffers.subspan(1);
  if (buffers.empty()) return size_t{0};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers.data());  // sendmsg does not write to it
  message.msg_iovlen = std::min(buffers.size(), kMaxBuffersPerSend);
  while (true) {
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    tsan_release_to_peers();
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return failure(errno, "sending to");
  }
}

Result<size_t> SocketConnection::receive_some(std::span<std::byte> buffer) {
  if (buffer.empty()) return size_t{0};
  while (true) {
    const ssize_t received = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    tsan_acquire_from_peers();
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0) {
      if (closed()) return failure(0, "receiving from");
      return Error{ErrorCode::closed, peer_ + " closed the connection"};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return failure(errno, "receiving from");
  }
}

bool SocketConnection::take_interrupt() {
  uint64_t count = 0;
  return ::read(wake_, &count, sizeof count) == sizeof count;
}

Result<Connection::Ready> SocketConnection::wait(bool for_receive, bool for_send, Deadline deadline) {
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
    // If no direction is requested, even a hang-up must not end the wait.
    pollfd polled[2] = {{wished != 0 ? socket_ : -1, wished, 0}, {wake(for_receive, for_send), POLLIN, 0}};
    const int count = ::poll(polled, 2, static_cast<int>(limit.count()));
    if (count < 0) {
      if (errno == EINTR) continue;
      return failure(errno, "waiting for");
    }
    const bool interrupted = polled[1].revents != 0 && take_interrupt();
    const short seen = polled[0].revents;
    // The next call on the socket reports the error.
    const bool broken = (seen & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    const bool receive = for_receive && ((seen & POLLIN) != 0 || broken);
    const bool send = for_send && ((seen & POLLOUT) != 0 || broken);
    if (receive && send) return Ready::both;
    if (receive) return Ready::receive;
    if (send) return Ready::send;
    if (interrupted) return Ready::none;
    if (count == 0 && wished != 0 && peer_is_gone(dead_peer_timeout_)) {
      return Error{ErrorCode::lost, "connection lost: " + peer_ + " did not respond for " +
                                        std::to_string(dead_peer_timeout_.count()) + " ms"};
    }
    if (last_turn && count == 0) return Ready::none;
  }
}

bool SocketConnection::wait_for_end() {
  const milliseconds check_every = std::max(milliseconds(50), dead_peer_timeout_ / 4);
  while (true) {
    pollfd polled{socket_, POLLRDHUP, 0};
    const int count = ::poll(&polled, 1, static_cast<int>(check_every.count()));
    if (count > 0) return (polled.revents & (POLLRDHUP | POLLERR)) == POLLRDHUP && !closed();
    if (count < 0 && errno != EINTR) return false;
    if (count == 0 && peer_is_gone(dead_peer_timeout_)) return false;
  }
}

void SocketConnection::interrupt() {
  const uint64_t one = 1;
  // A full counter means that an interrupt is pending already.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

void SocketConnection::close() {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

int SocketConnection::release_descriptor() {
  return std::exchange(socket_, -1);
}

Result<std::unique_ptr<Connection>> adopt_stream(int descriptor, std::string peer, const Options& options) {
  if (!prepare_socket(descriptor))
    return refuse_descriptor(descriptor, ErrorCode::unavailable, "cannot prepare a connection", errno);
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0)
    return refuse_descriptor(descriptor, ErrorCode::unavailable, "cannot create an eventfd", errno);
  return std::unique_ptr<Connection>(
      std::make_unique<SocketConnection>(descriptor, wake, std::move(peer), options));
}

bool prepare_socket(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0 &&
         ::fcntl(descriptor, F_SETFD, FD_CLOEXEC) == 0;
}

Error refuse_descriptor(int descriptor, ErrorCode code, const std::string& doing, int error) {
  if (descriptor >= 0) ::close(descriptor);
  return {code, doing + ": " + std::generic_category().message(error)};
}

}  // namespace gpupool::transport
