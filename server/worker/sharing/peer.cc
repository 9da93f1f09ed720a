#include "server/worker/sharing/peer.h"

#include <system_error>
#include <utility>
#include <vector>

#include "protocol/control/hello_exchange.h"
#include "protocol/wire/frame.h"
#include "server/worker/copies/outgoing_copy.h"
#include "server/worker/sharing/peer_requests.h"

namespace gpupool::worker {
namespace {

constexpr CUresult kBroken = CUDA_ERROR_OPERATING_SYSTEM;

}  // namespace

Peer::Peer(bool over_rdma, PeerRequests& requests, std::chrono::milliseconds dead_peer_timeout,
           const transport::RdmaOptions& rdma, std::shared_ptr<Bandwidth> bandwidth)
    : requests_(requests), bandwidth_(std::move(bandwidth)) {
  options_.dead_peer_timeout = dead_peer_timeout;
  options_.bulk = true;
  if (over_rdma) options_.rdma = rdma;
}

Result<std::unique_ptr<transport::Connection>> connect_to_peer(PeerRequests& requests,
                                                               wire::PeerTarget target,
                                                               transport::Options options) {
  const bool over_rdma = target.tls == 0 && options.rdma.use != transport::RdmaOptions::Use::never;
  target.rdma = over_rdma;
  const auto [descriptor, protection] = requests.ask(target);
  if (descriptor < 0) return Error{ErrorCode::unavailable, "the other server cannot be reached"};
  // adopt() fails if poold has sent no key.
  const bool over_tls = target.tls != 0 && !protection.within_host;
  options.tls.secret = protection.channel_key;
  options.tls.side = transport::Side::client;
  auto connection = transport::adopt(over_tls ? "tls" : over_rdma ? "rdma" : "tcp", descriptor, options);
  if (!connection) return connection;
  const auto deadline = transport::Clock::now() + options.connect_timeout;
  if (const auto welcome = hello::receive_reply(**connection, deadline); !welcome) return welcome.error();
  if (const auto upgraded = (*connection)->upgrade(transport::Side::client, deadline); !upgraded)
    return upgraded.error();
  return connection;
}

bool Peer::open(const wire::PeerTarget& target) {
  const std::lock_guard one_at_a_time(opening_);
  if (is_open()) return true;
  if (broken()) return false;
  auto connection = connect_to_peer(requests_, target, options_);
  const std::lock_guard lock(mutex_);
  if (state_ != State::closed) return false;  // stop() was called meanwhile
  state_ = connection ? State::open : State::broken;
  if (!connection) return false;
  connection_ = std::move(*connection);
  opened_for_ = target.copy;
  if (bandwidth_) connection_ = std::make_unique<MeteredConnection>(std::move(connection_), bandwidth_);
  try {
    sender_ = std::thread([this] { run_sender(); });
  } catch (const std::system_error&) {  // no thread available
    state_ = State::broken;
  }
  return state_ == State::open;
}

bool Peer::is_open() {
  const std::lock_guard lock(mutex_);
  return state_ == State::open;
}

bool Peer::broken() {
  const std::lock_guard lock(mutex_);
  return state_ == State::broken;
}

void Peer::send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::open) {
      queue_.push_back({std::move(copy), piece});
      wake_.notify_one();
      return;
    }
  }
  copy->finish(kBroken);
}

Result<void> Peer::send_key(OutgoingCopy& copy) {
  if (std::exchange(copy.key_sent, true) || copy.target().copy == opened_for_) return {};
  wire::BulkHeader header{
      .length = sizeof copy.target().key, .flags = wire::kBulkCopyKey, .copy = copy.target().copy};
  wire::CopyKey key = copy.target().key;
  const iovec parts[] = {{&header, sizeof header}, {key.data(), key.size()}};
  return transport::send_all(*connection_, parts, {});
}

void Peer::run_sender() {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceSender sender(compression::Policy::off);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return state_ != State::open || !queue_.empty(); });
    if (state_ != State::open) break;
    Piece piece = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    auto sent = send_key(*piece.copy);
    if (sent) sent = piece.copy->send(*connection_, sender, piece.number, scratch);
    if (!sent) piece.copy->finish(kBroken);
    piece.copy = nullptr;
    lock.lock();
    if (!sent) state_ = State::broken;
  }
  std::deque<Piece> unsent;
  unsent.swap(queue_);
  lock.unlock();
  for (const Piece& piece : unsent) piece.copy->finish(kBroken);
}

void Peer::stop() {
  std::thread sender;
  {
    const std::lock_guard lock(mutex_);
    state_ = State::broken;
    if (connection_) connection_->close();
    sender.swap(sender_);
  }
  wake_.notify_all();
  if (sender.joinable()) sender.join();
}

}  // namespace gpupool::worker
