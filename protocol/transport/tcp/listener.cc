#include "protocol/transport/tcp/listener.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <exception>
#include <system_error>

#include "protocol/transport/socket/listener.h"
#include "protocol/transport/tcp/address.h"
#include "protocol/transport/tcp/connection.h"

namespace gpupool::transport::tcp {
namespace {

Error cannot_listen(const Endpoint& endpoint, const std::string& why) {
  return transport::cannot_listen(endpoint, why,
                                  "check that the address belongs to this host and that the port is free");
}

Result<std::unique_ptr<Listener>> resolve_and_listen(const Endpoint& endpoint, const Options& options,
                                                     SocketListener::Adopt adopt) {
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
  return std::unique_ptr<Listener>(
      std::make_unique<SocketListener>(made, wake, std::move(actual), options, adopt));
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  return listen_for(endpoint, options, adopt);
}

Result<std::unique_ptr<Listener>> listen_for(const Endpoint& endpoint, const Options& options,
                                             SocketListener::Adopt adopt) {
  try {
    return resolve_and_listen(endpoint, options, adopt);
  } catch (const std::exception& failure) {
    return cannot_listen(endpoint, failure.what());
  }
}

}  // namespace gpupool::transport::tcp
