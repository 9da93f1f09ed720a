// The upgrade of a connection from TCP to rdma: both sides exchange the addresses of their queue pairs,
// connect them and test them, and exchange StepResults after each step. If rdma turns out to be impossible
// for either side, both stay with TCP.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "rdma/connection.h"

namespace gpupool::transport::rdma {
namespace {

// Time limit for connecting through the manager and for the probe, which is resent until it fails if packets
// get lost on the way, for example in a firewall.
constexpr std::chrono::seconds kSetupTimeout{5};
constexpr std::chrono::microseconds kMinPollTime{20}, kMaxPollTime{300};
constexpr unsigned kPollsPerYield = 64;

template <class Body>
std::span<std::byte> bytes_of(Body& body) {
  return std::as_writable_bytes(std::span(&body, 1));
}

}  // namespace

Result<void> RdmaConnection::upgrade(Side side, Deadline deadline) {
  if (options_.use == RdmaOptions::Use::never && side == Side::client && !replaces()) return {};
  const std::string problem = prepare(side);
  const UpgradeOffer mine = make_offer(problem);
  UpgradeOffer theirs;
  if (auto exchanged = exchange(std::as_bytes(std::span(&mine, 1)), bytes_of(theirs), deadline); !exchanged)
    return exchanged;
  const auto refusal = refusal_reason(theirs);
  if (!refusal) return Error{refusal.error().code, peer() + " " + refusal.error().message};
  std::string why = problem.empty() ? *refusal : problem;
  if (why.empty()) {
    auto connected = connect_queue_pairs(side, mine, theirs, deadline);
    if (!connected) return connected.error();
    why = *connected;
  }
  if (why.empty()) return begin(theirs);
  // Another attempt may succeed, unless the keys of the session are lost.
  const bool over = replaces() && !domain_->take_events();
  forget_rdma();
  if (replaces()) {
    return Error{over ? ErrorCode::refused : ErrorCode::unavailable,
                 "the session needs rdma with " + peer() + " again, and there is none: " + why};
  }
  if (options_.use == RdmaOptions::Use::always)
    return Error{ErrorCode::unavailable, "no rdma with " + peer() + ": " + why};
  carrier_ = "tcp (no rdma: " + why + ")";
  patience_ = {};
  return {};
}

UpgradeOffer RdmaConnection::make_offer(const std::string& problem) const {
  UpgradeOffer offer;
  offer.usable = problem.empty();
  set_reason(offer, problem);
  if (domain_) offer.domain = domain_->number();
  if (stream_) {
    offer.receives = stream_->receives();
    offer.stream = stream_->pair().address();
  }
  if (direct_) offer.direct = direct_->pair().address();
  if (manager_) {
    offer.has_manager = 1;
    offer.manager_port = manager_->port();
    offer.manager_token = manager_->token();
  }
  return offer;
}

Result<void> RdmaConnection::begin(const UpgradeOffer& theirs) {
  if (direct_) {
    direct_ = nullptr;
    auto begun = transfers_->begin(this, [this](const Error& why) { break_now(why); });
    if (!begun) return begun;
  }
  resources_ = session_ ? session_ : std::make_shared<Resources>(domain_, transfers_, theirs.domain);
  carrier_ = "rdma (" + domain_->text() + (manager_ ? ", connection manager)" : ")");
  upgraded_.store(true, std::memory_order_release);
  return {};
}

void RdmaConnection::forget_rdma() {
  if (transfers_) transfers_->drop(this);
  transfers_.reset();
  direct_ = nullptr;
  stream_.reset();
  manager_.reset();
  domain_.reset();
}

Result<std::string> RdmaConnection::connect_queue_pairs(Side side, const UpgradeOffer& mine,
                                                        const UpgradeOffer& theirs, Deadline deadline) {
  std::vector<ConnectionManager::Pair> pairs{{&stream_->pair(), theirs.stream}};
  Result<void> ready = stream_->begin(theirs.receives);
  if (theirs.direct.queue_pair != 0 && direct_) {
    pairs.push_back({&direct_->pair(), theirs.direct});
  } else if (direct_) {
    if (replaces())
      ready = Error{ErrorCode::refused, "the peer has no queue pair for direct copies any more"};
    transfers_->drop(this);
    transfers_.reset();
    direct_ = nullptr;
  }
  if (replaces() && (theirs.domain == 0 || theirs.domain != session_->peer_domain)) {
    ready = Error{ErrorCode::refused,
                  "the peer uses another RDMA device, or other keys, than before the connection broke"};
  }
  const UpgradeOffer& server = side == Side::server ? mine : theirs;
  const UpgradeOffer& client = side == Side::server ? theirs : mine;
  bool connected = false;
  if (server.manager_port != 0 && client.has_manager != 0) {
    const Deadline limit = Clock::now() + kSetupTimeout;
    const auto agreed = exchange_results(
        !ready                 ? ready
        : side == Side::server ? manager_->accept(pairs, socket(), options_, limit)
                               : connect_by_manager(server.manager_port, server.manager_token, pairs, limit),
        deadline);
    if (!agreed) return agreed.error();
    connected = agreed->empty();
    for (const auto& pair : pairs) {
      if (ready && !connected) ready = pair.mine->reset();
    }
  }
  if (!connected) {
    manager_.reset();
    for (const auto& pair : pairs) {
      if (ready) ready = pair.mine->connect(pair.theirs, options_);
    }
    const auto agreed = exchange_results(ready, deadline);
    if (!agreed || !agreed->empty()) return agreed;
  }
  const auto begin = Clock::now();
  const auto probed = stream_->probe(begin + kSetupTimeout);
  // The probe took a message, its acknowledgement and a wake-up: a sleeping thread learns of data that
  // much later. Polling takes no system call.
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  patience_ = {std::clamp(took, kMinPollTime, kMaxPollTime), kPollsPerYield};
  return exchange_results(probed, deadline);
}

Result<void> RdmaConnection::connect_by_manager(uint16_t port, const ConnectionManager::Token& token,
                                                std::span<const ConnectionManager::Pair> pairs,
                                                Deadline deadline) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  ::getsockname(socket(), reinterpret_cast<sockaddr*>(&here), &here_size);
  ::getpeername(socket(), reinterpret_cast<sockaddr*>(&there), &there_size);
  return manager_->connect(here, there, port, token, pairs, options_, deadline);
}

std::string RdmaConnection::prepare(Side side) {
  if (options_.use == RdmaOptions::Use::never && !session_) return "rdma is disabled";
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  ::getsockname(socket(), reinterpret_cast<sockaddr*>(&local), &size);
  if (session_) {
    if (auto there = domain_->look_again(options_, local); !there) return there.error().message;
  } else {
    auto domain = Domain::open(options_, local);
    if (!domain) return domain.error().message;
    domain_ = std::move(*domain);
  }
  failures_before_ = domain_->failures();
  auto stream = Stream::make(domain_, bulk_);
  if (!stream) return stream.error().message;
  stream_ = std::move(*stream);
  const bool by_addresses = options_.setup == RdmaOptions::Setup::addresses ||
                            (options_.setup == RdmaOptions::Setup::automatic && side == Side::server &&
                             domain_->address().ethernet);
  if (!by_addresses) manager_ = ConnectionManager::open();
  if (manager_ && side == Side::server && !manager_->listen(local, domain_->device())) manager_.reset();
  return bulk_ || (session_ && !session_->transfers) ? "" : prepare_direct(side);
}

std::string RdmaConnection::prepare_direct(Side side) {
  if (session_) {
    transfers_ = session_->transfers;
  } else {
    auto transfers = DirectTransfers::make(domain_);
    if (!transfers) return transfers.error().message;
    transfers_ = std::move(*transfers);
  }
  auto channel = DataChannel::make(domain_, side);
  if (!channel) return channel.error().message;
  DataChannel* const direct = channel->get();
  if (auto taken = transfers_->take(this, std::move(*channel)); !taken) return taken.error().message;
  direct_ = direct;
  return {};
}

Result<void> RdmaConnection::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs,
                                      Deadline deadline) {
  const iovec part{const_cast<std::byte*>(mine.data()), mine.size()};
  if (auto sent = send_all(*this, {&part, 1}, deadline); !sent) return sent;
  return receive_exact(*this, theirs, deadline);
}

Result<std::string> RdmaConnection::exchange_results(const Result<void>& mine, Deadline deadline) {
  StepResult result, theirs;
  result.good = mine.ok();
  if (!mine) set_reason(result, mine.error().message);
  if (auto exchanged = exchange(bytes_of(result), bytes_of(theirs), deadline); !exchanged)
    return exchanged.error();
  if (!mine) return mine.error().message;
  return refusal_reason(theirs);
}

}  // namespace gpupool::transport::rdma
