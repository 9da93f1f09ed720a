#include "protocol/transport/socket/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace gpupool::transport {
namespace {

// True for errors of accept() after which it may be called again, as accept(2) advises.
bool concerns_one_connection(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case EHOSTDOWN:
    case ENETUNREACH:
    case EHOSTUNREACH: return true;
    default: return false;
  }
}

}  // namespace

Error cannot_listen(const Endpoint& endpoint, const std::string& why, const std::string& advice) {
  return {ErrorCode::unavailable, "cannot listen on " + endpoint.text() + ": " + why + "; " + advice};
}

Result<int> make_wake(int socket, const Endpoint& endpoint) {
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake >= 0) return wake;
  const int error = errno;
  ::close(socket);
  return cannot_listen(endpoint, std::generic_category().message(error),
                       "the process may have too many descriptors open");
}

Result<std::unique_ptr<Listener>> take_over_listener(int socket, const Endpoint& endpoint,
                                                     const Options& options, SocketListener::Adopt adopt) {
  const auto wake = make_wake(socket, endpoint);
  if (!wake) return wake.error();
  return std::unique_ptr<Listener>(std::make_unique<SocketListener>(socket, *wake, endpoint, options, adopt));
}

SocketListener::SocketListener(int socket, int wake, Endpoint endpoint, const Options& options, Adopt adopt)
    : socket_(socket), wake_(wake), endpoint_(std::move(endpoint)), options_(options), adopt_(adopt) {}

SocketListener::~SocketListener() {
  ::close(socket_);
  ::close(wake_);
}

Result<std::unique_ptr<Connection>> SocketListener::accept(Deadline deadline) {
  while (true) {
    if (closed_.load(std::memory_order_acquire)) {
      return Error{ErrorCode::closed, "listener on " + endpoint_.text() + " was closed"};
    }
    const int accepted = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) {
      auto connection = adopt_(accepted, options_);
      if (connection || connection.error().code != ErrorCode::lost) return connection;
      // Else the peer hung up before it was accepted.
    } else if (!concerns_one_connection(errno) && errno != EAGAIN) {
      return Error{ErrorCode::unavailable, "cannot accept a connection on " + endpoint_.text() + ": " +
                                               std::generic_category().message(errno)};
    }
    // Checked after each connection, since peers may hang up faster than they are accepted.
    int limit = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      if (left.count() <= 0)
        return Error{ErrorCode::lost, "timed out waiting for a connection on " + endpoint_.text()};
      limit = static_cast<int>(std::min<int64_t>(left.count(), 60'000));
    }
    pollfd polled[2] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
    ::poll(polled, 2, limit);
  }
}

void SocketListener::close() {
  closed_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  ::shutdown(socket_, SHUT_RDWR);  // refuses new connections; the descriptor stays open until destruction
}

}  // namespace gpupool::transport
