#include "server/worker/peer.h"

#include <system_error>
#include <vector>

#include "protocol/control/hello_exchange.h"
#include "protocol/wire/frame.h"
#include "server/worker/outgoing_copy.h"

namespace gpupool::worker {
namespace {

constexpr CUresult kBroken = CUDA_ERROR_OPERATING_SYSTEM;

}  // namespace

Peer::Peer(transport::Endpoint server, std::string session_id, std::string token, std::chrono::milliseconds dead_peer_timeout,
           const transport::RdmaOptions& rdma, std::shared_ptr<Bandwidth> bandwidth)
    : server_(std::move(server)), session_id_(std::move(session_id)), token_(std::move(token)), bandwidth_(std::move(bandwidth)) {
  options_.dead_peer_timeout = dead_peer_timeout;
  options_.bulk = true;
  if (server_.scheme == "rdma") options_.rdma = rdma;
}

bool Peer::open() {
  const std::lock_guard one_at_a_time(opening_);
  if (is_open()) return true;
  if (broken()) return false;
  auto connection = transport::connect(server_, options_);
  bool good = connection.ok();
  if (good) {
    hello::Hello hello;
    hello.protocol_version = wire::kProtocolVersion;
    hello.session_id = session_id_;
    hello.bulk_token = token_;
    hello.from_peer = true;
    hello.rdma = static_cast<uint32_t>(options_.rdma.use);
    const auto deadline = transport::Clock::now() + options_.connect_timeout;
    good = hello::exchange(**connection, hello, deadline) && (*connection)->upgrade(transport::Side::client, deadline);
  }
  const std::lock_guard lock(mutex_);
  if (state_ != State::closed) return false;  // stopped meanwhile
  state_ = good ? State::open : State::broken;
  if (!good) return false;
  connection_ = std::move(*connection);
  if (bandwidth_) connection_ = std::make_unique<MeteredConnection>(std::move(connection_), bandwidth_);
  try {
    sender_ = std::thread([this] { run_sender(); });
  } catch (const std::system_error&) {  // no thread to be had
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
    const auto sent = piece.copy->send(*connection_, sender, piece.number, scratch);
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
