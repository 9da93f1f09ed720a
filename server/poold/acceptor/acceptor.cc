#include "server/poold/acceptor/acceptor.h"

#include <fcntl.h>

#include "common/admission/peer.h"
#include "common/log/log.h"
#include "server/poold/acceptor/pending_handshake.h"
#include "server/sockets/descriptor_closer.h"
#include "server/sockets/untrusted_socket.h"

namespace gpupool::server {
namespace {

constexpr size_t kMaxPendingHandshakes = 512;
constexpr int kMostAcceptedAtOnce = 32;  // then other handlers run
constexpr std::chrono::milliseconds kPauseAfterFailure{100};
constexpr unsigned kReportsPerSecond = 20;

}  // namespace

Acceptor::WatchedListener::WatchedListener(asio::io_context& context,
                                           std::unique_ptr<transport::Listener> made)
    : listener(std::move(made)), readable(context, listener->descriptor()), pause(context) {}

Acceptor::Acceptor(asio::io_context& context, std::vector<std::unique_ptr<transport::Listener>> listeners,
                   std::chrono::milliseconds hello_timeout, unsigned connections_per_second, Admit admit,
                   Deny deny, FindPeerCopy find_peer_copy)
    : context_(context),
      hello_timeout_(hello_timeout),
      admit_(std::move(admit)),
      deny_(std::move(deny)),
      find_peer_copy_(std::move(find_peer_copy)),
      tls_handshakes_(context),
      unlogged_(context,
                [](uint64_t count) {
                  log::warning("clients_refused_unlogged", {{"count", count}});
                }),
      rates_({.burst = 2.0 * connections_per_second,
              .per_second = static_cast<double>(connections_per_second)}) {
  for (auto& listener : listeners)
    listeners_.push_back(std::make_unique<WatchedListener>(context, std::move(listener)));
}

Acceptor::~Acceptor() {
  close();
}

void Acceptor::open() {
  paused_ = false;
  for (const auto& watched : listeners_) await_connection(*watched);
}

void Acceptor::close() {
  if (!std::exchange(closed_, true)) {
    for (const auto& watched : listeners_) {
      watched->pause.cancel();
      watched->readable.cancel();
      // Keep a duplicate, so that the kernel closes unaccepted connections when the process ends. Closing
      // them here could block on descriptors in unread messages.
      (void)::fcntl(watched->listener->descriptor(), F_DUPFD_CLOEXEC, 0);
      watched->listener->close();
    }
  }
  drop_pending();  // includes refused clients that were added since an earlier call
}

void Acceptor::pause() {
  paused_ = true;
  for (const auto& watched : listeners_) {
    watched->pause.cancel();
    watched->readable.cancel();
  }
}

void Acceptor::drop_pending() {
  while (pending_.size() != 0) pending_.oldest_of_busiest_peer("")->drop();
  unlogged_.finish();
}

void Acceptor::await_connection(WatchedListener& watched) {
  watched.readable.async_wait(asio::posix::stream_descriptor::wait_read,
                              [this, &watched](const asio::error_code& status) {
                                if (!status && !closed_ && !paused_) accept_some(watched);
                              });
}

void Acceptor::accept_some(WatchedListener& watched) {
  for (int count = 0; count < kMostAcceptedAtOnce; ++count) {
    auto connection = watched.listener->accept(transport::Clock::now());
    if (connection) {
      add(std::move(*connection), watched.listener->endpoint().scheme);
      continue;
    }
    if (connection.error().code != ErrorCode::unavailable) break;  // no pending connection
    // Out of descriptors or memory: sessions that end will free some.
    log::error("accept_failed", {{"reason", connection.error().message}});
    watched.pause.expires_after(kPauseAfterFailure);
    watched.pause.async_wait([this, &watched](const asio::error_code& status) {
      if (!status && !closed_ && !paused_) await_connection(watched);
    });
    return;
  }
  await_connection(watched);
}

void Acceptor::add(std::unique_ptr<transport::Connection> connection, const std::string& transport) {
  const std::string address = connection->peer();
  const int descriptor = connection->release_descriptor();
  if (transport == "shm") refuse_descriptors(descriptor);
  const std::string peer = peer_of(address, descriptor);
  if (!rates_.take(peer)) {
    report(address, "too many new connections from " + peer);
    close_connection(descriptor);
    return;
  }
  make_room(peer);
  std::shared_ptr<transport::tls::Stream> tls;
  if (transport == "tls") {
    auto stream = transport::tls::Stream::server(tls_, descriptor);
    if (!stream) {
      report(address, stream.error().message);
      close_connection(descriptor);
      return;
    }
    tls = std::move(*stream);
  }
  auto handshake = std::make_shared<PendingHandshake>(*this, descriptor, transport, address, std::move(tls));
  handshake->position = pending_.add(handshake->peer(), handshake);
  handshake->read_hello(hello_timeout_);
}

// If the limit is reached, drops the oldest connection of the peer that has most, counting the new connection
// of `peer`. Among peers with equally many, the oldest connection is dropped.
void Acceptor::make_room(const std::string& peer) {
  if (pending_.size() < kMaxPendingHandshakes) return;
  const auto oldest = pending_.oldest_of_busiest_peer(peer);
  report(oldest->address(),
         "dropped for a newer connection: too many pending handshakes, most of them from " + oldest->peer());
  oldest->drop();
}

void Acceptor::admit(PendingHandshake& handshake, Client client, const Credentials& shown) {
  handshake.drop();
  admit_(std::move(client), shown);
}

void Acceptor::deny(PendingHandshake& handshake, Client client, const Refusal& refusal) {
  handshake.drop();
  deny_(std::move(client), refusal);
}

bool Acceptor::accepts_peer_hello(const std::string& peer) {
  return peer_hellos_.take(peer) && all_peer_hellos_.take();
}

void Acceptor::drop(Client client) {
  ++refused_connections_;
  unlogged_.note();
  close_connection(client.descriptor);
}

void Acceptor::refuse(Client client, const Refusal& refusal) {
  make_room(client.admission_peer);
  auto handshake = std::make_shared<PendingHandshake>(*this, client.descriptor, client.transport,
                                                      client.address, client.tls);
  handshake->position = pending_.add(handshake->peer(), handshake);
  handshake->refuse(refusal);
}

void Acceptor::report(const std::string& address, const std::string& why) {
  ++refused_connections_;
  const auto now = std::chrono::steady_clock::now();
  if (now - report_second_ >= std::chrono::seconds(1)) {
    report_second_ = now;
    reports_in_second_ = 0;
  }
  if (++reports_in_second_ > kReportsPerSecond) return unlogged_.note();
  log::warning("client_refused", {{"client", address}, {"reason", why}});
}

}  // namespace gpupool::server
