#include "server/poold/listeners.h"

#include <algorithm>
#include <optional>

#include "common/log/log.h"
#include "common/version.h"
#include "protocol/transport/loopback.h"
#include "protocol/transport/rdma_options.h"
#include "protocol/transport/shm/address.h"

namespace gpupool::server {
namespace {

bool is_foreign(const transport::Endpoint& endpoint) {
  return endpoint.scheme != "shm" && !transport::is_loopback(endpoint.host);
}

transport::Endpoint endpoint_of(const upgrade::Listener& listener) {
  return {listener.scheme(), listener.host(), static_cast<uint16_t>(listener.port())};
}

// Removes and returns the previous program's listener at this address.
std::optional<upgrade::Listener> take(const transport::Endpoint& endpoint, PreviousListeners& previous) {
  const auto found = std::ranges::find_if(previous, [&](const upgrade::Listener& listener) {
    return (listener.configured().empty() ? endpoint_of(listener).text() : listener.configured()) ==
           endpoint.text();
  });
  if (found == previous.end()) return std::nullopt;
  upgrade::Listener taken = *found;
  previous.erase(found);
  return taken;
}

Result<void> check_exposure(const transport::Endpoint& actual, const transport::Endpoint& configured,
                            const ServerOptions& options) {
  if (!is_foreign(actual) || options.insecure || (configured.scheme == "tls" && any_credentials(options)))
    return {};
  return Error{ErrorCode::invalid,
               "refusing to listen on " + configured.text() +
                   ": addresses reachable from other machines must use tls:// and authentication (tokens or "
                   "certificates for each [[tenant]], or a pool's leases); otherwise listen on 127.0.0.1, or "
                   "use --insecure on a trusted network"};
}

Result<void> open_listener(const transport::Endpoint& endpoint, const ServerOptions& options,
                           Listeners& listeners, PreviousListeners& previous) {
  const transport::Options settings{.dead_peer_timeout = options.dead_peer_timeout};
  const auto taken = take(endpoint, previous);
  auto listener = taken ? transport::take_over(taken->descriptor(), endpoint_of(*taken), settings)
                        : transport::listen(endpoint, settings);
  if (!listener) return listener.error();
  if (auto checked = check_exposure((*listener)->endpoint(), endpoint, options); !checked) return checked;
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

Result<Listeners> open_listeners(const ServerOptions& options, PreviousListeners& previous) {
  Listeners listeners;
  for (const auto& endpoint : options.listen) {
    if (auto opened = open_listener(endpoint, options, listeners, previous); !opened) return opened.error();
  }
  return listeners;
}

Result<void> check_listeners(const ServerOptions& options, PreviousListeners previous) {
  Listeners opened;
  PreviousListeners none;
  for (const auto& endpoint : options.listen) {
    if (const auto taken = take(endpoint, previous)) {
      if (auto checked = check_exposure(endpoint_of(*taken), endpoint, options); !checked) return checked;
      continue;
    }
    if (auto listens = open_listener(endpoint, options, opened, none); !listens) return listens;
  }
  return {};
}

void close_previous(const PreviousListeners& previous) {
  for (const upgrade::Listener& listener : previous)
    (void)transport::take_over(listener.descriptor(), endpoint_of(listener), {});
}

void save(const transport::Listener& listener, const ServerOptions& options, upgrade::State& to) {
  const auto index = static_cast<size_t>(to.listeners_size());
  upgrade::Listener& saved = *to.add_listeners();
  if (index < options.listen.size()) saved.set_configured(options.listen[index].text());
  const transport::Endpoint endpoint = listener.endpoint();
  saved.set_scheme(endpoint.scheme);
  saved.set_host(endpoint.host);
  saved.set_port(endpoint.port);
  saved.set_descriptor(listener.descriptor());
}

void listen_beside_tcp(const ServerOptions& options, Listeners& listeners, PreviousListeners& previous) {
  for (size_t at = listeners.size(); at-- > 0;) {
    const transport::Endpoint tcp = listeners[at]->endpoint();  // or rdma, whose connections start over TCP
    if (tcp.scheme == "shm" || tcp.scheme == "tls") continue;
    if (auto opened = open_listener(transport::shm::shm_endpoint_of_tcp(tcp.host, tcp.port), options,
                                    listeners, previous);
        !opened) {
      log::warning("no_shared_memory", {{"address", tcp.text()}, {"reason", opened.error().message}});
    }
  }
}

void log_listening(const ServerOptions& options, const std::string& addresses) {
  const char* const rdma = !options.rdma                  ? "off"
                           : transport::has_rdma_device() ? "offered; connections start over the TCP port"
                                                          : "no device";
  log::info("listening", {{"address", addresses},
                          {"device", options.device},
                          {"rdma", rdma},
                          {"version", kVersion},
                          {"max_sessions", options.max_sessions}});
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
