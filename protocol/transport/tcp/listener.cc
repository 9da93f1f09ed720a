#include "protocol/transport/tcp/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <exception>
#include <system_error>

#include "protocol/transport/tcp/address.h"
#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

constexpr int kBacklog = 512;

Error cannot_listen(const Endpoint& endpoint, const std::string& why) {
  return {ErrorCode::unavailable, "cannot listen on " + endpoint.text() + ": " + why +
                                      "; check that the address is this host's and the port free"};
}

Result<std::unique_ptr<Listener>> resolve_and_listen(const Endpoint& endpoint, const Options& options) {
  asio::io_context context(1);
  asio::error_code status;
  asio::ip::tcp::resolver resolver(context);
  const auto addresses =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                       asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service, status);
  if (status || addresses.empty()) return cannot_listen(endpoint, status.message());
  const asio::ip::tcp::endpoint address = *addresses.begin();
  const int made =
      ::socket(address.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (made < 0) return cannot_listen(endpoint, std::generic_category().message(errno));
  const int on = 1;
  ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::bind(made, address.data(), static_cast<socklen_t>(address.size())) != 0 ||
      ::listen(made, kBacklog) != 0 || ::getsockname(made, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const int error = errno;
    ::close(made);
    return cannot_listen(endpoint, std::generic_category().message(error));
  }
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int error = errno;
    ::close(made);
    return cannot_listen(endpoint, std::generic_category().message(error));
  }
  Endpoint actual{endpoint.scheme, address_host(bound), address_port(bound)};
  return std::unique_ptr<Listener>(std::make_unique<TcpListener>(made, wake, std::move(actual), options));
}

}  // namespace

TcpListener::TcpListener(int socket, int wake, Endpoint endpoint, const Options& options)
    : socket_(socket), wake_(wake), endpoint_(std::move(endpoint)), options_(options) {}

TcpListener::~TcpListener() {
  ::close(socket_);
  ::close(wake_);
}

Result<std::unique_ptr<Connection>> TcpListener::accept(Deadline deadline) {
  while (true) {
    if (closed_.load(std::memory_order_acquire)) {
      return Error{ErrorCode::closed, "listener on " + endpoint_.text() + " was closed"};
    }
    const int accepted = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) {
      auto connection = adopt(accepted, options_);
      if (connection || connection.error().code != ErrorCode::lost) return connection;
      continue;  // gone before it was accepted
    }
    switch (errno) {
      case EAGAIN:
        break;
      case EINTR:
      case ECONNABORTED:
      case EPROTO:
      case ENETDOWN:
      case EHOSTDOWN:
      case ENETUNREACH:
      case EHOSTUNREACH:
        continue;  // errors of that one connection, as accept(2) advises
      default:
        return Error{ErrorCode::unavailable, "cannot accept a connection on " + endpoint_.text() + ": " +
                                                 std::generic_category().message(errno)};
    }
    int limit = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      if (left.count() <= 0)
        return Error{ErrorCode::lost, "no connection on " + endpoint_.text() + " in time"};
      limit = static_cast<int>(std::min<int64_t>(left.count(), 60'000));
    }
    pollfd polled[2] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
    ::poll(polled, 2, limit);
  }
}

void TcpListener::close() {
  closed_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  ::shutdown(socket_, SHUT_RDWR);  // refuses who comes now; the descriptor itself lives until destruction
}

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  try {
    return resolve_and_listen(endpoint, options);
  } catch (const std::exception& failure) {
    return cannot_listen(endpoint, failure.what());
  }
}

}  // namespace gpupool::transport::tcp
