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
  if (options_.use == RdmaOptions::Use::never && side == Side::client) return {};
  const std::string problem = prepare(side);
  UpgradeOffer mine;
  mine.usable = problem.empty();
  set_reason(mine, problem);
  if (stream_) {
    mine.receives = stream_->receives();
    mine.stream = stream_->pair().address();
  }
  if (direct_) mine.direct = direct_->pair().address();
  if (manager_) {
    mine.has_manager = 1;
    mine.manager_port = manager_->port();
    mine.manager_token = manager_->token();
  }
  UpgradeOffer theirs;
  if (auto exchanged = exchange(bytes_of(mine), bytes_of(theirs), deadline); !exchanged) return exchanged;
  const auto refusal = refusal_reason(theirs);
  if (!refusal) return Error{refusal.error().code, peer() + " " + refusal.error().message};
  std::string why = problem.empty() ? *refusal : problem;
  if (why.empty()) {
    auto connected = connect_queue_pairs(side, mine, theirs, deadline);
    if (!connected) return connected.error();
    why = *connected;
  }
  if (why.empty()) {
    carrier_ = "rdma (" + domain_->device().text() + (manager_ ? ", connection manager)" : ")");
    upgraded_.store(true, std::memory_order_release);
    return {};
  }
  direct_.reset();
  stream_.reset();
  manager_.reset();
  domain_.reset();
  if (options_.use == RdmaOptions::Use::always)
    return Error{ErrorCode::unavailable, "no rdma with " + peer() + ": " + why};
  carrier_ = "tcp (no rdma: " + why + ")";
  patience_ = {};
  return {};
}

Result<std::string> RdmaConnection::connect_queue_pairs(Side side, const UpgradeOffer& mine,
                                                        const UpgradeOffer& theirs, Deadline deadline) {
  std::vector<ConnectionManager::Pair> pairs{{&stream_->pair(), theirs.stream}};
  if (theirs.direct.queue_pair == 0) direct_.reset();
  if (direct_) pairs.push_back({&direct_->pair(), theirs.direct});
  Result<void> ready = stream_->begin(theirs.receives);
  const UpgradeOffer& server = side == Side::server ? mine : theirs;
  const UpgradeOffer& client = side == Side::server ? theirs : mine;
  bool connected = false;
  if (ready && server.manager_port != 0 && client.has_manager != 0) {
    const Deadline limit = Clock::now() + kSetupTimeout;
    const auto agreed = exchange_results(
        side == Side::server ? manager_->accept(pairs, socket(), options_, limit)
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
  if (options_.use == RdmaOptions::Use::never) return "rdma is disabled";
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  ::getsockname(socket(), reinterpret_cast<sockaddr*>(&local), &size);
  if (!domain_) {
    auto domain = Domain::open(options_, local);
    if (!domain) return domain.error().message;
    domain_ = std::move(*domain);
  }
  auto stream = Stream::make(domain_, bulk_);
  if (!stream) return stream.error().message;
  stream_ = std::move(*stream);
  const bool by_addresses =
      options_.setup == RdmaOptions::Setup::addresses ||
      (options_.setup == RdmaOptions::Setup::automatic && side == Side::server && domain_->device().ethernet);
  if (!by_addresses) manager_ = ConnectionManager::open();
  if (manager_ && side == Side::server && !manager_->listen(local, domain_->device())) manager_.reset();
  if (bulk_) return {};
  auto direct = DataChannel::make(domain_, side);
  if (!direct) return direct.error().message;
  direct_ = std::move(*direct);
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
