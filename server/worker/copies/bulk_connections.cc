#include "server/worker/copies/bulk_connections.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "protocol/control/dump.pb.h"
#include "protocol/peers/proof.h"
#include "server/worker/copies/incoming_copy.h"
#include "server/worker/copies/outgoing_copy.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::seconds kOpeningTime{10};

std::string text_of(const ThreadActivity* activity) {
  if (!activity) return {};
  const char* const function = activity->driver_function.load(std::memory_order_relaxed);
  const char* const waits_for = activity->waits_for.load(std::memory_order_relaxed);
  return function ? function : waits_for ? waits_for : "";
}

}  // namespace

bool BulkConnections::add(std::unique_ptr<transport::Connection> connection,
                          std::optional<uint64_t> peer_copy, ResumableLink resumable) {
  std::vector<std::unique_ptr<Link>> gone;
  bool added = false;
  {
    const std::lock_guard lock(mutex_);
    for (auto& link : links_) {
      if (link->state == Link::over) gone.push_back(std::move(link));
    }
    std::erase(links_, nullptr);
    if (!stopping_ && links_.size() < wire::kMaxBulkConnections) {
      Link& link = *links_.emplace_back(std::make_unique<Link>());
      link.connection = std::move(connection);
      link.resumable = resumable;
      link.pieces.emplace(compression_, resumable.connection);
      link.from_peer = peer_copy.has_value();
      try {
        link.receiver = std::thread([this, &link, peer_copy] { run_receiver(link, peer_copy); });
        if (!peer_copy) link.sender = std::thread([this, &link] { run_sender(link); });
        added = true;
      } catch (const std::system_error&) {  // no thread available; one direction alone is useless
        link.connection->close();
      }
    }
  }
  join(gone);
  return added;
}

void BulkConnections::join(std::vector<std::unique_ptr<Link>>& links) {
  for (const auto& link : links) {
    if (link->receiver.joinable()) link->receiver.join();
    if (link->sender.joinable()) link->sender.join();
  }
}

bool BulkConnections::any() {
  const std::lock_guard lock(mutex_);
  return !stopping_ && std::any_of(links_.begin(), links_.end(), [](const auto& link) {
    return link->state != Link::over && !link->from_peer;
  });
}

void BulkConnections::drop_peers() {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->from_peer) link->connection->close();
  }
}

void BulkConnections::take_back(std::span<const std::byte> memory) {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->resumable.connection) link->resumable.connection->take_back(memory);
  }
}

void BulkConnections::send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      queue_.push_back({std::move(copy), piece});
      wake_.notify_all();
      return;
    }
  }
  copy->finish(CUDA_ERROR_UNKNOWN);
}

void BulkConnections::send_among_messages(std::shared_ptr<OutgoingCopy> copy, uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!stopping_ && !sends_messages_) message_sender_ = std::thread([this] { run_message_sender(); });
      sends_messages_ = true;
    } catch (const std::system_error&) {  // no thread available
    }
    if (!stopping_ && sends_messages_) {
      messages_.push_back({std::move(copy), piece});
      wake_.notify_all();
      return;
    }
  }
  copy->finish(CUDA_ERROR_OUT_OF_MEMORY);
}

bool BulkConnections::open(Link& link) {
  const ResumableLink& resumable = link.resumable;
  const auto opened =
      welcome_(*link.connection, transport::Clock::now() + kOpeningTime, resumable.connection != nullptr);
  if (opened && resumable.connection) {
    resumable.connection->start();
    link.resumption.emplace(*resumable.connection, resumable.number, *resumable.terms);
  }
  {
    const std::lock_guard lock(mutex_);
    link.state = opened ? Link::open : Link::over;
  }
  if (!opened) link.connection->close();
  wake_.notify_all();
  return opened.ok();
}

Result<void> BulkConnections::accept_key(Link& link, uint64_t copy) {
  const auto incoming = std::dynamic_pointer_cast<IncomingCopy>(copies_.await(copy));
  if (!incoming || !incoming->take_key_once()) {
    return Error{ErrorCode::malformed,
                 "a server presented the key of an unknown copy, or a key that was already used"};
  }
  std::erase_if(link.claimed, [this](uint64_t earlier) { return !copies_.find(earlier); });
  link.claimed.push_back(copy);
  return {};
}

void BulkConnections::set_activity(const ThreadActivity** place, const ThreadActivity* activity) {
  const std::lock_guard lock(mutex_);
  *place = activity;
}

void BulkConnections::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  dump.set_bulk_pieces_queued(queue_.size() + messages_.size());
  for (const auto& link : links_) {
    admin::BulkConnection& one = *dump.add_bulk_connections();
    one.set_state(link->state == Link::opening ? "opening" : link->state == Link::open ? "open" : "over");
    one.set_from_peer(link->from_peer);
    one.set_receiver(text_of(link->receiving));
    one.set_sender(text_of(link->sending));
  }
}

void BulkConnections::run_receiver(Link& link, std::optional<uint64_t> peer_copy) {
  set_activity(&link.receiving, &t_activity);
  receive_until_closed(link, peer_copy);
  set_activity(&link.receiving, nullptr);
}

void BulkConnections::receive_until_closed(Link& link, std::optional<uint64_t> peer_copy) {
  if (!open(link)) return;
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceReader reader(*link.connection, link.resumable.connection ? &*link.pieces : nullptr);
  auto received = peer_copy ? accept_key(link, *peer_copy) : Result<void>{};
  while (received) received = receive_piece(link, reader, scratch);
  link.connection->close();
  {
    const std::lock_guard lock(mutex_);
    link.state = Link::over;
  }
  wake_.notify_all();
  // A client that leaves also closes its command connection, which ends the session.
  if (link.from_peer || received.error().code == ErrorCode::closed) return;
  outbox_.end("a bulk connection failed: " + received.error().message);
}

Result<void> BulkConnections::receive_key(Link& link, compression::PieceReader& reader, uint64_t copy) {
  wire::CopyKey key;
  if (auto received = reader.read(std::as_writable_bytes(std::span(key))); !received) return received;
  if (peers::same(key, peers::copy_key(bulk_token_, copy))) return accept_key(link, copy);
  return Error{ErrorCode::malformed, "a server presented a wrong key for a copy"};
}

Result<void> BulkConnections::receive_piece(Link& link, compression::PieceReader& reader,
                                            std::span<std::byte> scratch) {
  const Waiting waiting("the client's data");
  const auto header = reader.next(link.from_peer);
  if (!header) return header.error();
  if (header->flags == wire::kBulkCopyKey) return receive_key(link, reader, header->copy);
  if (link.from_peer &&
      std::find(link.claimed.begin(), link.claimed.end(), header->copy) == link.claimed.end()) {
    return Error{ErrorCode::malformed, "a server sent a piece of a copy before presenting the copy's key"};
  }
  const auto copy = std::dynamic_pointer_cast<IncomingCopy>(copies_.await(header->copy));
  if (!copy) return Error{ErrorCode::malformed, "a piece of an unknown copy"};
  outbox_.counters().bytes_from_client.fetch_add(sizeof *header + header->length, std::memory_order_relaxed);
  const auto received = copy->receive(reader, header->offset, scratch);
  if (received) return {};
  const bool broken = received.error().code == ErrorCode::closed;
  return Error{broken ? ErrorCode::lost : received.error().code, received.error().message};
}

bool BulkConnections::next(std::deque<Piece>& queue, const Link* link, Piece& piece) {
  piece.copy = nullptr;
  const Waiting waiting("pieces to send");
  std::unique_lock lock(mutex_);
  const auto over = [&] { return stopping_ || (link && link->state == Link::over); };
  wake_.wait(lock, [&] { return over() || (!queue.empty() && (!link || link->state == Link::open)); });
  if (over()) return false;
  piece = std::move(queue.front());
  queue.pop_front();
  return true;
}

void BulkConnections::run_sender(Link& link) {
  set_activity(&link.sending, &t_activity);
  send_until_closed(link);
  set_activity(&link.sending, nullptr);
}

void BulkConnections::send_until_closed(Link& link) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceSender& sender = *link.pieces;
  Piece piece;
  while (next(queue_, &link, piece)) {
    const Waiting waiting("the client to read");
    const auto sent = piece.copy->send(*link.connection, sender, piece.number, scratch);
    outbox_.counters().bytes_to_client.fetch_add(sender.take_sent(), std::memory_order_relaxed);
    if (!sent) return outbox_.end("a bulk connection failed: " + sent.error().message);
  }
}

void BulkConnections::run_message_sender() {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  Piece piece;
  while (next(messages_, nullptr, piece)) piece.copy->send(outbox_, piece.number, scratch);
}

void BulkConnections::close() {
  std::deque<Piece> unsent;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    unsent.swap(queue_);
    unsent.insert(unsent.end(), messages_.begin(), messages_.end());
    messages_.clear();
    for (const auto& link : links_) link->connection->close();
  }
  wake_.notify_all();
  copies_.end();
}

void BulkConnections::stop() {
  close();
  join(links_);
  links_.clear();
  if (message_sender_.joinable()) message_sender_.join();
}

}  // namespace gpupool::worker
