// The payload of poold's answer peer_found to a worker that has asked for a connection to another server: how
// the data on that connection is protected. poold writes it (server/poold/workers/peer_copies.cc), the worker
// reads it (server/worker/sharing/peer_requests.h). Pure functions; any thread.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace gpupool::server {

struct PeerProtection {
  std::string channel_key = {};  // of the TLS stream that follows (peers::channel_key); empty: none follows
  bool within_host = false;      // leads to another worker of the same poold; never encrypted
};

// In place of a key; no key is equal to it, because keys have 32 bytes.
constexpr std::string_view kWithinHost = "within the host";

inline std::string to_payload(const PeerProtection& protection) {
  return protection.within_host ? std::string(kWithinHost) : protection.channel_key;
}
inline PeerProtection parse_peer_protection(std::string payload) {
  if (payload == kWithinHost) return {.within_host = true};
  return {.channel_key = std::move(payload)};
}

}  // namespace gpupool::server
