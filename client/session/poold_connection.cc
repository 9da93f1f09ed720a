#include "client/session/poold_connection.h"

#include <algorithm>

#include "protocol/control/hello_exchange.h"

namespace gpupool::client {

Result<std::unique_ptr<transport::Connection>> connect_to_poold(const Settings& settings,
                                                                const LeasedServer& server,
                                                                hello::Hello hello,
                                                                std::chrono::milliseconds patience,
                                                                hello::HelloReply* reply) {
  transport::Endpoint endpoint = server.endpoint;
  // RDMA sessions begin over TCP; this connection stays on TCP.
  if (endpoint.scheme == "rdma") endpoint.scheme = "tcp";
  transport::Options options;
  options.connect_timeout = std::min(settings.connect_timeout, patience);
  options.dead_peer_timeout = settings.dead_peer_timeout;
  options.tls = settings.tls;
  options.prefer_shared_memory = settings.shared_memory && settings.carrier == Carrier::automatic;
  auto connection = transport::connect(endpoint, options);
  if (!connection) return connection.error();
  hello.tenant = settings.tenant;
  hello.token = server.token.empty() ? settings.token : server.token;
  auto answer = hello::exchange(**connection, hello, transport::Clock::now() + patience);
  if (!answer) return answer.error();
  *reply = std::move(*answer);
  return std::move(*connection);
}

}  // namespace gpupool::client
