// The session's connections to other servers. Executor's thread.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "protocol/wire/peers.h"
#include "server/worker/session/session_start.h"
#include "server/worker/sharing/peer.h"
#include "server/worker/sharing/peer_requests.h"

namespace gpupool::worker {

class Peers {
 public:
  // `start` must outlive this object.
  explicit Peers(const SessionStart& start) : start_(start), requests_(start.control) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Returns the connection to another server, which may not be open yet, or null if there are too many.
  std::shared_ptr<Peer> connection_to(const wire::PeerTarget& target);
  // Opens a connection of its own, for a migration. Blocks.
  Result<std::unique_ptr<transport::Connection>> open(const wire::PeerTarget& target);
  // Ends all connections and the requests for new ones.
  void stop();

 private:
  struct Name {
    std::array<uint8_t, 16> address, session_id;
    uint16_t port, rdma;
    uint32_t tls;
    auto operator<=>(const Name&) const = default;
  };
  const SessionStart& start_;
  PeerRequests requests_;
  std::map<Name, std::shared_ptr<Peer>> peers_;
  // Broken peers that copies still refer to. They are kept because the last copy may end on the peer's own
  // thread, which cannot join itself, and because stop() waits for that thread.
  std::vector<std::shared_ptr<Peer>> replaced_;
};

}  // namespace gpupool::worker
