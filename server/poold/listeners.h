// The addresses on which poold listens, and the rule that those in reach of other machines need
// authentication. Called at poold's start, on its thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/transport/transport.h"
#include "server/poold/options.h"
#include "server/poold/upgrade/state.pb.h"

namespace gpupool::server {

using Listeners = std::vector<std::unique_ptr<transport::Listener>>;
// The listeners of this process's previous program (server/poold/upgrade). Those that are taken are removed.
using PreviousListeners = google::protobuf::RepeatedPtrField<upgrade::Listener>;

bool listens_with_tls(const ServerOptions& options);
// True if poold can authenticate clients: by tenants' tokens or certificates, or by a pool's leases.
bool any_credentials(const ServerOptions& options);
// Takes what it can from `previous`.
Result<Listeners> open_listeners(const ServerOptions& options, PreviousListeners& previous);
// Checks that the listeners that are not in `previous` can be opened, and closes them.
Result<void> check_listeners(const ServerOptions& options, PreviousListeners previous);
// Adds a shared-memory listener beside each TCP and RDMA listener, for programs on this host. On failure it
// logs a warning, and those programs use TCP.
void listen_beside_tcp(const ServerOptions& options, Listeners& listeners, PreviousListeners& previous);
// Closes those that the configuration no longer has.
void close_previous(const PreviousListeners& previous);
// Adds the next one of poold's listeners, in their order.
void save(const transport::Listener& listener, const ServerOptions& options, upgrade::State& to);

// Logs what poold offers to clients.
void log_listening(const ServerOptions& options, const std::string& addresses);

struct Addresses {
  explicit Addresses(const Listeners& listeners);
  uint16_t port = 0;     // of the first listener that has one
  bool foreign = false;  // an address is reachable from other machines
  std::string text;
  std::vector<std::string> remote;  // all but shm
};

}  // namespace gpupool::server
