#include "server/poold/listeners.h"

#include <algorithm>

#include "common/log/log.h"
#include "protocol/transport/loopback.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/transport/shm/address.h"

namespace gpupool::server {
namespace {

bool is_foreign(const transport::Endpoint& endpoint) {
  return endpoint.scheme != "shm" && !transport::is_loopback(endpoint.host);
}

Result<void> open_listener(const transport::Endpoint& endpoint, const ServerOptions& options,
                           Listeners& listeners) {
  auto listener = transport::listen(endpoint, {.dead_peer_timeout = options.dead_peer_timeout});
  if (!listener) return listener.error();
  if (is_foreign((*listener)->endpoint()) && !options.insecure &&
      (endpoint.scheme != "tls" || !any_credentials(options))) {
    return Error{
        ErrorCode::invalid,
        "refusing to listen on " + endpoint.text() +
            ": addresses reachable from other machines must use tls:// and authentication (tokens or "
            "certificates for each [[tenant]], or a pool's leases); otherwise listen on 127.0.0.1, or use "
            "--insecure on a trusted network"};
  }
  listeners.push_back(std::move(*listener));
  return {};
}

}  // namespace

bool listens_with_tls(const ServerOptions& options) {
  return std::any_of(options.listen.begin(), options.listen.end(),
                     [](const auto& endpoint) { return endpoint.scheme == "tls"; });
}

bool any_credentials(const ServerOptions& options) {
  const auto& tenants = options.tenants;
  return options.pool.configured() || std::any_of(tenants.begin(), tenants.end(), [](const Tenant& tenant) {
           return tenant.has_credentials();
         });
}

Result<Listeners> open_listeners(const ServerOptions& options) {
  Listeners listeners;
  for (const auto& endpoint : options.listen) {
    if (auto opened = open_listener(endpoint, options, listeners); !opened) return opened.error();
  }
  return listeners;
}

void listen_beside_tcp(const ServerOptions& options, Listeners& listeners) {
  for (size_t at = listeners.size(); at-- > 0;) {
    const transport::Endpoint tcp = listeners[at]->endpoint();  // or rdma, whose connections start over TCP
    if (tcp.scheme == "shm" || tcp.scheme == "tls") continue;
    if (auto opened =
            open_listener(transport::shm::shm_endpoint_of_tcp(tcp.host, tcp.port), options, listeners);
        !opened) {
      log::warning("no_shared_memory", {{"address", tcp.text()}, {"reason", opened.error().message}});
    }
  }
}

const char* rdma_offer(const ServerOptions& options) {
  if (!options.rdma) return "off";
  return transport::has_rdma_device() ? "offered; connections start over the TCP port" : "no device";
}

Addresses::Addresses(const Listeners& listeners) {
  for (const auto& listener : listeners) {
    const transport::Endpoint endpoint = listener->endpoint();
    if (port == 0) port = endpoint.port;
    foreign = foreign || is_foreign(endpoint);
    text += (text.empty() ? "" : ",") + endpoint.text();
    if (endpoint.scheme != "shm") remote.push_back(endpoint.text());
  }
}

}  // namespace gpupool::server
