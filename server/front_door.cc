#include "server/front_door.h"

#include <fcntl.h>

#include "server/admission/peer.h"
#include "server/descriptor_closer.h"
#include "server/foreign_socket.h"
#include "server/half_open.h"
#include "server/log/log.h"

namespace gpupool::server {
namespace {

constexpr size_t kMostHalfOpen = 512;
constexpr int kMostAcceptedAtOnce = 32;  // then other handlers run
constexpr std::chrono::milliseconds kPauseAfterFailure{100};
constexpr unsigned kReportsPerSecond = 20;

}  // namespace

FrontDoor::Entrance::Entrance(asio::io_context& context, std::unique_ptr<transport::Listener> made)
    : listener(std::move(made)), readable(context, listener->descriptor()), pause(context) {}

FrontDoor::FrontDoor(asio::io_context& context, std::vector<std::unique_ptr<transport::Listener>> listeners,
                     std::chrono::milliseconds hello_timeout, unsigned connections_per_second, Admit admit, Deny deny, FindPeerCopy find_peer_copy)
    : context_(context), hello_timeout_(hello_timeout), admit_(std::move(admit)), deny_(std::move(deny)), find_peer_copy_(std::move(find_peer_copy)),
      handshakes_(context),
      unlogged_(context, [](uint64_t count) { log::warning("clients_refused_unlogged", {{"count", count}}); }),
      rates_({.burst = 2.0 * connections_per_second, .per_second = static_cast<double>(connections_per_second)}) {
  for (auto& listener : listeners) entrances_.push_back(std::make_unique<Entrance>(context, std::move(listener)));
}

FrontDoor::~FrontDoor() {
  close();
}

void FrontDoor::open() {
  for (const auto& entrance : entrances_) await_connection(*entrance);
}

void FrontDoor::close() {
  if (!std::exchange(closed_, true)) {
    for (const auto& entrance : entrances_) {
      entrance->pause.cancel();
      entrance->readable.cancel();
      // Keep a duplicate, so that the kernel closes unaccepted connections when the process ends. Closing
      // them here could block on descriptors in unread messages.
      (void)::fcntl(entrance->listener->descriptor(), F_DUPFD_CLOEXEC, 0);
      entrance->listener->close();
    }
  }
  // Includes refused clients that were added since an earlier call.
  while (half_open_.size() != 0) half_open_.oldest_of_most("")->drop();
  unlogged_.finish();
}

void FrontDoor::await_connection(Entrance& entrance) {
  entrance.readable.async_wait(asio::posix::stream_descriptor::wait_read,
                               [this, &entrance](const asio::error_code& status) {
                                 if (!status && !closed_) accept_some(entrance);
                               });
}

void FrontDoor::accept_some(Entrance& entrance) {
  for (int count = 0; count < kMostAcceptedAtOnce; ++count) {
    auto connection = entrance.listener->accept(transport::Clock::now());
    if (connection) {
      add(std::move(*connection), entrance.listener->endpoint().scheme);
      continue;
    }
    if (connection.error().code != ErrorCode::unavailable) break;  // no pending connection
    // Out of descriptors or memory: sessions that end will free some.
    log::error("accept_failed", {{"reason", connection.error().message}});
    entrance.pause.expires_after(kPauseAfterFailure);
    entrance.pause.async_wait([this, &entrance](const asio::error_code& status) {
      if (!status && !closed_) await_connection(entrance);
    });
    return;
  }
  await_connection(entrance);
}

void FrontDoor::add(std::unique_ptr<transport::Connection> connection, const std::string& transport) {
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
  auto half_open = std::make_shared<HalfOpen>(*this, descriptor, transport, address, std::move(tls));
  half_open->place = half_open_.add(half_open->peer(), half_open);
  half_open->read_hello(hello_timeout_);
}

// If the limit is reached, drops the oldest connection of the peer that has most, counting the new connection
// of `peer`. Among peers with equally many, the oldest connection is dropped.
void FrontDoor::make_room(const std::string& peer) {
  if (half_open_.size() < kMostHalfOpen) return;
  const auto oldest = half_open_.oldest_of_most(peer);
  report(oldest->address(), "dropped for a newer connection: too many pending handshakes, most of them from " + oldest->peer());
  oldest->drop();
}

void FrontDoor::admit(HalfOpen& half_open, Client client, const Credentials& shown) {
  half_open.drop();
  admit_(std::move(client), shown);
}

void FrontDoor::deny(HalfOpen& half_open, Client client, const Refusal& refusal) {
  half_open.drop();
  deny_(std::move(client), refusal);
}

bool FrontDoor::takes_peer_hello(const std::string& peer) { return peer_hellos_.take(peer) && all_peer_hellos_.take(); }

void FrontDoor::drop(Client client) {
  ++turned_away_;
  unlogged_.note();
  close_connection(client.descriptor);
}

void FrontDoor::refuse(Client client, const Refusal& refusal) {
  make_room(client.charged_to);
  auto half_open = std::make_shared<HalfOpen>(*this, client.descriptor, client.transport, client.address, client.tls);
  half_open->place = half_open_.add(half_open->peer(), half_open);
  half_open->refuse(refusal);
}

void FrontDoor::report(const std::string& address, const std::string& why) {
  ++turned_away_;
  const auto now = std::chrono::steady_clock::now();
  if (now - report_second_ >= std::chrono::seconds(1)) {
    report_second_ = now;
    reports_in_second_ = 0;
  }
  if (++reports_in_second_ > kReportsPerSecond) return unlogged_.note();
  log::warning("client_refused", {{"client", address}, {"reason", why}});
}

}  // namespace gpupool::server
