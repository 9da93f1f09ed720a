// The table of the transports, and the functions of transport.h that choose one of them by its name. The only
// file that knows all transports.
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "protocol/transport/rdma_backend.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/socket/listener.h"
#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tcp/listener.h"
#include "protocol/transport/tls/connection.h"
#include "protocol/transport/transport.h"

namespace gpupool::transport {
namespace {

struct Backend {
  std::string_view scheme;
  Result<std::unique_ptr<Connection>> (*connect)(const Endpoint& endpoint, const Options& options);
  Result<std::unique_ptr<Listener>> (*listen)(const Endpoint& endpoint, const Options& options);
  Result<std::unique_ptr<Connection>> (*adopt)(int descriptor, const Options& options);
  Result<std::unique_ptr<Listener>> (*take_over)(int socket, const Endpoint& endpoint,
                                                 const Options& options);
};

template <SocketListener::Adopt adopt>
Result<std::unique_ptr<Listener>> take_over(int socket, const Endpoint& endpoint, const Options& options) {
  return take_over_listener(socket, endpoint, options, adopt);
}

// A constant, not registered at load time, so that the client library has no global constructors.
constexpr Backend kBackends[] = {
    {"tcp", tcp::connect, tcp::listen, tcp::adopt, take_over<tcp::adopt>},
    {"tls", tls::connect, tls::listen, tls::adopt, take_over<tcp::adopt>},  // as tls::listen() does
    {"shm", shm::connect, shm::listen, shm::adopt, shm::take_over},
    {"rdma", rdma::connect, rdma::listen, rdma::adopt, take_over<rdma::adopt>},
};

Result<const Backend*> find_backend(const std::string& scheme) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.scheme == scheme) return &backend;
    known += (known.empty() ? "" : ", ") + std::string(backend.scheme);
  }
  return Error{ErrorCode::invalid, "unknown transport '" + scheme + "'; must be one of " + known};
}

}  // namespace

bool Endpoint::has_transport(const std::string& text) {
  return std::any_of(std::begin(kBackends), std::end(kBackends), [&](const Backend& backend) {
    return text.starts_with(std::string(backend.scheme) + "://");
  });
}

Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, const Options& options) {
  const auto backend = find_backend(endpoint.scheme);
  if (!backend) return backend.error();
  return (*backend)->connect(endpoint, options);
}

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, const Options& options) {
  const auto backend = find_backend(endpoint.scheme);
  if (!backend) return backend.error();
  return (*backend)->listen(endpoint, options);
}

Result<std::unique_ptr<Listener>> take_over(int socket, const Endpoint& endpoint, const Options& options) {
  const auto backend = find_backend(endpoint.scheme);
  if (!backend) {
    ::close(socket);
    return backend.error();
  }
  return (*backend)->take_over(socket, endpoint, options);
}

Result<std::unique_ptr<Connection>> adopt(const std::string& scheme, int descriptor, const Options& options) {
  const auto backend = find_backend(scheme);
  if (!backend) {
    if (descriptor >= 0) ::close(descriptor);
    return backend.error();
  }
  return (*backend)->adopt(descriptor, options);
}

}  // namespace gpupool::transport
