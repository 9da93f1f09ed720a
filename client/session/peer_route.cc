#include "client/session/peer_route.h"

#include <cstring>

#include "client/session/peer_address.h"

namespace gpupool::client {
namespace {

// The route, if other servers can connect to the target.
PeerRoute route_by_encryption(const PeerEnd& source, const PeerEnd& target, bool same_server) {
  if (target.scheme == "tcp") return PeerRoute::plain;
  if (target.scheme != "tls") return PeerRoute::unreachable;
  if (source.scheme != "tls") return PeerRoute::exposes_key;
  if (source.encrypts && target.encrypts) return PeerRoute::encrypted;
  if (same_server) return PeerRoute::plain;
  return source.encrypts ? PeerRoute::target_cannot_encrypt : PeerRoute::source_cannot_encrypt;
}

}  // namespace

PeerEnd make_peer_end(const hello::HelloReply& reply, const transport::Endpoint& server,
                      const std::string& peer) {
  return {.scheme = server.scheme == "rdma" ? "tcp" : server.scheme,
          .encrypts = reply.encrypts_peers,
          .address = numeric_address(peer, server.host),
          .port = server.port,
          .session_id = reply.session_id,
          .token = reply.bulk_token,
          .protocol = reply.peer_protocol};
}

PeerRoute choose_peer_route(const PeerEnd& source, const PeerEnd& target, bool same_server) {
  const PeerRoute route = route_by_encryption(source, target, same_server);
  const bool accepts = target.address && !target.token.empty() &&
                       target.session_id.size() == sizeof(wire::PeerTarget::session_id) &&
                       target.protocol == wire::kPeerProtocolVersion;
  return is_usable(route) && !accepts ? PeerRoute::unreachable : route;
}

wire::PeerTarget make_peer_target(const PeerEnd& target, PeerRoute route) {
  wire::PeerTarget made{};
  made.address = *target.address;
  std::memcpy(made.session_id.data(), target.session_id.data(), made.session_id.size());
  made.port = target.port;
  made.tls = route == PeerRoute::encrypted;
  return made;
}

}  // namespace gpupool::client
