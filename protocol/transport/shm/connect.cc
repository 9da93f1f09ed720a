#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "protocol/transport/shm/address.h"
#include "protocol/transport/shm/connection.h"

namespace gpupool::transport::shm {
namespace {

// Returns -1 and sets errno on failure.
int connected_socket(const Address& address, std::chrono::milliseconds timeout) {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  // Limits how long connect() waits for room in the listener's backlog.
  const timeval limit{static_cast<time_t>(timeout.count() / 1000),
                      static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
  ::setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  while (::connect(made, address.get(), address.size) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    ::close(made);
    errno = error;
    return -1;
  }
  return made;
}

// Any process can take an abstract name, so the listener's user, as recorded by the kernel, must be root or
// this program's user. Returns why it is not trusted, or an empty string.
std::string distrust_reason(int socket) {
  ucred listener{};
  socklen_t size = sizeof listener;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0)
    return "the kernel does not report the listener's user";
  if (listener.uid == 0 || listener.uid == ::geteuid()) return "";
  return "the listener runs as user " + std::to_string(listener.uid) +
         ", which is neither root nor this program's user";
}

}  // namespace

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  const auto address = make_address(endpoint);
  if (!address) return address.error();
  const int socket = connected_socket(*address, options.connect_timeout);
  const int error = errno;
  const auto failure = [&](const std::string& why, const char* advice,
                           ErrorCode code = ErrorCode::unavailable) {
    return Error{code, "cannot connect to " + endpoint.text() + ": " + why + "; " + advice};
  };
  if (socket >= 0) {
    const std::string distrusted = endpoint.host.starts_with('@') ? distrust_reason(socket) : "";
    if (distrusted.empty()) return adopt(socket, options);
    ::close(socket);
    return failure(distrusted,
                   "any user can take an abstract name; let a poold that runs as another user listen on a "
                   "path (shm:///PATH)");
  }
  if (error == ECONNREFUSED)
    return failure("connection refused", "check that poold runs there and listens on this address",
                   ErrorCode::reset);
  if (error == EAGAIN) {
    return failure("no answer within " + std::to_string(options.connect_timeout.count()) + " ms",
                   "check that poold is not suspended");
  }
  return failure(std::generic_category().message(error),
                 "check the path, its permissions, and that poold runs on this host and listens there");
}

std::unique_ptr<Connection> connect_shm_of_tcp(const std::string& numeric_host, uint16_t port,
                                               const Options& options) {
  const auto address = make_address(shm_endpoint_of_tcp(numeric_host, port));
  if (!address) return nullptr;
  const int socket = connected_socket(*address, options.connect_timeout);
  if (socket < 0) return nullptr;
  if (!distrust_reason(socket).empty()) {
    ::close(socket);
    return nullptr;
  }
  auto adopted = adopt(socket, options);
  return adopted ? std::move(*adopted) : nullptr;
}

}  // namespace gpupool::transport::shm
