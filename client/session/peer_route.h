// Decides whether the server of one session may send memory directly to the server of another, and whether
// encrypted (docs/adr/0040-encrypted-peers.md). Copies between servers (client/copies/server_copy.cc) and
// migrations (client/session/migrator.cc) follow the same rule. Pure functions; any thread.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "protocol/control/hello_codec.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/peers.h"

namespace gpupool::client {

// One of the two sessions, with the terms of its server's HelloReply (make_peer_end()).
struct PeerEnd {
  std::string scheme;     // of the server's port: "tcp" (also with rdma) or "tls"
  bool encrypts = false;  // HelloReply.encrypts_peers
  // Only needed of the receiving session: how other servers connect to it.
  std::optional<std::array<uint8_t, 16>> address = std::nullopt;  // see numeric_address()
  uint16_t port = 0;
  std::string session_id = {};
  std::string token = {};  // HelloReply.bulk_token
  uint32_t protocol = 0;   // HelloReply.peer_protocol
};

// `server`: the address of the session's server. `peer`: Connection::peer() of a connection to it.
PeerEnd make_peer_end(const hello::HelloReply& reply, const transport::Endpoint& server,
                      const std::string& peer);

enum class PeerRoute {
  plain,                  // to a tcp port, or between workers of one poold
  encrypted,              // to a tls port
  exposes_key,            // none: the source would get the key to a tls port over an unencrypted connection
  source_cannot_encrypt,  // none: the target has a tls port
  target_cannot_encrypt,  // none: the target has a tls port
  unreachable,            // none: other servers cannot connect to the target
};
constexpr bool is_usable(PeerRoute route) {
  return route == PeerRoute::plain || route == PeerRoute::encrypted;
}

// The client would give `source` a key with which its server may send to `target`. `same_server`: both
// sessions are at one address of one poold, which connects its workers within the host; they need no
// encryption between them, and may be of releases that cannot encrypt.
PeerRoute choose_peer_route(const PeerEnd& source, const PeerEnd& target, bool same_server);

// Describes the receiving end of a usable route. The caller sets the copy and its key, and `rdma`.
wire::PeerTarget make_peer_target(const PeerEnd& target, PeerRoute route);

}  // namespace gpupool::client
