// Copies between servers: opens connections to other servers for workers (peer_connections.h), and finds the
// session that another server's hello names. poold's thread.
#pragma once
#include <array>
#include <asio/io_context.hpp>
#include <optional>

#include "protocol/wire/peers.h"
#include "server/handover/handover.h"
#include "server/poold/workers/client.h"
#include "server/poold/workers/peer_connections.h"
#include "server/poold/workers/workers.h"
#include "server/sockets/networks.h"

namespace gpupool::server {

class PeerCopies {
 public:
  PeerCopies(asio::io_context& context, Workers& workers, const Networks& allowed)
      : workers_(workers), connections_(context, allowed) {}
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Opens a connection for the worker. Returns false if the worker was ended because it has too many.
  bool wanted(Worker& asking, const packet::PeerWanted& wanted);
  // Finds the copy that another server's hello names; empty: no session here has it. Computes one hash per
  // session.
  std::optional<PeerCopy> find(const wire::PeerHello& hello) const;
  void session_ended(const Worker& worker) { connections_.drop(worker.session); }
  void close() { connections_.close(); }
  // Fails all requests for connections that are pending.
  void give_up_waiting() { connections_.give_up(); }
  bool has_attempts() const { return connections_.has_attempts(); }

 private:
  Worker* receiver_here(const Worker& asking, const wire::PeerTarget& target) const;
  void connect_here(Worker& receiver, const packet::PeerWanted& wanted, const std::array<int, 2>& pair,
                    const PeerConnections::Answer& answered);
  void answer(uint64_t session, uint64_t request, const PeerConnections::Opened& opened);

  Workers& workers_;
  PeerConnections connections_;
};

}  // namespace gpupool::server
