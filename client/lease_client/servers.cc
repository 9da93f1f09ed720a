#include "client/lease_client/servers.h"

#include <utility>

#include "protocol/transport/transport.h"

namespace gpupool::lease_client {
namespace {

Result<void> add_server(const pool::Server& server, std::vector<client::LeasedServer>& to) {
  auto endpoint = transport::Endpoint::parse(server.address());
  if (!endpoint)
    return Error{ErrorCode::malformed,
                 "node " + server.node() + " has an invalid address: " + endpoint.error().message};
  to.push_back({std::move(*endpoint), server.token()});
  return {};
}

}  // namespace

Result<std::vector<client::LeasedServer>> servers_of(const pool::Granted& granted) {
  std::vector<client::LeasedServer> servers;
  for (const auto& server : granted.servers()) {
    if (auto added = add_server(server, servers); !added) return added.error();
  }
  for (const pool::Move& move : granted.moves()) {
    if (move.server() >= servers.size() || !servers[move.server()].next.empty())
      return Error{ErrorCode::malformed, "the scheduler moves a server that the lease does not have"};
    if (auto added = add_server(move.to(), servers[move.server()].next); !added) return added.error();
  }
  return servers;
}

}  // namespace gpupool::lease_client
