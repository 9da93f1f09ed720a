// Accepts poold's connections and reads each one's Preamble and Hello, many concurrently. Passes clients with
// a complete, valid Hello to the Admit callback.
//
// Runs on poold's thread; steps of TLS handshakes run on another one (tls_handshake_queue.h). Connections are
// untrusted: their size, duration and number are limited, and so are the number and rate of each peer
// (common/admission/peer.h). At the limit the peer with the most connections loses its oldest, so no peer can
// lock out others.
#pragma once
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/admission/peer_rates.h"
#include "common/admission/per_peer.h"
#include "common/admission/suppressed_events.h"
#include "protocol/transport/transport.h"
#include "server/poold/acceptor/tls_handshake_queue.h"
#include "server/poold/workers/refusal.h"
#include "server/poold/workers/worker_pool.h"
#include "server/tenants/authenticate.h"

namespace gpupool::server {

class PendingHandshake;

class Acceptor {
 public:
  using Admit = std::function<void(Client, const Credentials&)>;
  using Deny = std::function<void(Client, const Refusal&)>;
  using FindPeerCopy = std::function<std::optional<PeerCopy>(const wire::PeerHello&)>;

  Acceptor(asio::io_context& context, std::vector<std::unique_ptr<transport::Listener>> listeners,
           std::chrono::milliseconds hello_timeout, unsigned connections_per_second, Admit admit, Deny deny,
           FindPeerCopy find_peer_copy);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Sets the TLS context of future connections to tls listeners.
  void use_tls(std::shared_ptr<const transport::tls::Context> context) { tls_ = std::move(context); }
  // Lets user IDs authenticate tenants on sockets at paths, too. By default they do so only on abstract
  // sockets, which containers with their own network namespace cannot reach.
  void trust_users_at_paths() { trusts_users_at_paths_ = true; }
  void open();
  // Closes the listeners and all pending connections.
  void close();
  // Accepts no connections until open(); they wait in the kernel's queues. Pending ones continue.
  void pause();
  bool has_pending() const { return pending_.size() != 0; }
  void drop_pending();  // and logs what it has only counted
  template <class F>
  void for_each_listener(F&& visit) const {
    for (const auto& watched : listeners_) visit(*watched->listener);
  }
  // Sends the refusal, and closes the connection when the client has read it or after a timeout. Takes
  // ownership of the descriptor.
  void refuse(Client client, const Refusal& refusal);
  // Closes the connection without an answer. Takes ownership of the descriptor.
  void drop(Client client);
  // Number of connections refused so far, logged or not.
  uint64_t refused_connections() const { return refused_connections_; }
  // Calls `visit` with the name and a reference of each counter.
  template <class F>
  void for_each_counter(F&& visit) {
    visit("handshake_failures", refused_connections_);
  }

 private:
  friend class PendingHandshake;

  struct WatchedListener {
    WatchedListener(asio::io_context& context, std::unique_ptr<transport::Listener> listener);
    ~WatchedListener() { readable.release(); }
    const std::unique_ptr<transport::Listener> listener;
    asio::posix::stream_descriptor readable;  // borrows the listener's descriptor
    asio::steady_timer pause;
  };

  void await_connection(WatchedListener& watched);
  void accept_some(WatchedListener& watched);
  void add(std::unique_ptr<transport::Connection> connection, const std::string& transport);
  void make_room(const std::string& peer);
  void admit(PendingHandshake& handshake, Client client, const Credentials& shown);
  void deny(PendingHandshake& handshake, Client client, const Refusal& refusal);
  bool accepts_peer_hello(const std::string& peer);
  void report(const std::string& address, const std::string& why);

  asio::io_context& context_;
  const std::chrono::milliseconds hello_timeout_;
  const Admit admit_;
  const Deny deny_;
  const FindPeerCopy find_peer_copy_;
  std::shared_ptr<const transport::tls::Context> tls_;
  bool trusts_users_at_paths_ = false;
  std::vector<std::unique_ptr<WatchedListener>> listeners_;
  TlsHandshakeQueue tls_handshakes_;
  PerPeer<std::shared_ptr<PendingHandshake>> pending_;
  bool closed_ = false;
  bool paused_ = false;
  uint64_t refused_connections_ = 0;
  // Limits logged refusals per second; unlogged_ counts the rest.
  std::chrono::steady_clock::time_point report_second_{};
  unsigned reports_in_second_ = 0;
  SuppressedEvents unlogged_;
  PeerRates rates_;
  // Rate limits for other servers' hellos: each costs a hash for every session.
  PeerRates peer_hellos_{{.burst = 64, .per_second = 16}};
  TokenBucket all_peer_hellos_{{.burst = 512, .per_second = 256}};
};

}  // namespace gpupool::server
