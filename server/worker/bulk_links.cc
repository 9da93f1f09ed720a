#include "server/worker/bulk_links.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "protocol/control/dump.pb.h"

#include "server/worker/incoming_copy.h"
#include "server/worker/outgoing_copy.h"

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

bool BulkLinks::add(std::unique_ptr<transport::Connection> connection, bool from_peer) {
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
      link.from_peer = from_peer;
      try {
        link.receiver = std::thread([this, &link] { run_receiver(link); });
        if (!from_peer) link.sender = std::thread([this, &link] { run_sender(link); });
        added = true;
      } catch (const std::system_error&) {  // no thread to be had: a connection that serves one direction is no use
        link.connection->close();
      }
    }
  }
  join(gone);
  return added;
}

void BulkLinks::join(std::vector<std::unique_ptr<Link>>& links) {
  for (const auto& link : links) {
    if (link->receiver.joinable()) link->receiver.join();
    if (link->sender.joinable()) link->sender.join();
  }
}

bool BulkLinks::any() {
  const std::lock_guard lock(mutex_);
  return !stopping_ && std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->state != Link::over && !link->from_peer; });
}

void BulkLinks::drop_peers() {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->from_peer) link->connection->close();
  }
}

void BulkLinks::send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece) {
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

void BulkLinks::send_among_messages(std::shared_ptr<OutgoingCopy> copy, uint64_t piece) {
  {
    const std::lock_guard lock(mutex_);
    try {
      if (!stopping_ && !sends_messages_) message_sender_ = std::thread([this] { run_message_sender(); });
      sends_messages_ = true;
    } catch (const std::system_error&) {  // no thread to be had
    }
    if (!stopping_ && sends_messages_) {
      messages_.push_back({std::move(copy), piece});
      wake_.notify_all();
      return;
    }
  }
  copy->finish(CUDA_ERROR_OUT_OF_MEMORY);
}

bool BulkLinks::open(Link& link) {
  const auto opened = welcome_(*link.connection, transport::Clock::now() + kOpeningTime);
  {
    const std::lock_guard lock(mutex_);
    link.state = opened ? Link::open : Link::over;
  }
  if (!opened) link.connection->close();
  wake_.notify_all();
  return opened.ok();
}

void BulkLinks::set_activity(const ThreadActivity** place, const ThreadActivity* activity) {
  const std::lock_guard lock(mutex_);
  *place = activity;
}

void BulkLinks::describe(admin::WorkerDump& dump) {
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

void BulkLinks::run_receiver(Link& link) {
  set_activity(&link.receiving, &t_activity);
  receive_until_closed(link);
  set_activity(&link.receiving, nullptr);
}

void BulkLinks::receive_until_closed(Link& link) {
  if (!open(link)) return;
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceReader reader(*link.connection);
  auto received = receive_piece(reader, scratch);
  while (received) received = receive_piece(reader, scratch);
  link.connection->close();
  {
    const std::lock_guard lock(mutex_);
    link.state = Link::over;
  }
  wake_.notify_all();
  // A client that is leaving: its command connection says so, too.
  if (link.from_peer || received.error().code == ErrorCode::closed) return;
  outbox_.end("a bulk connection failed: " + received.error().message);
}

Result<void> BulkLinks::receive_piece(compression::PieceReader& reader, std::span<std::byte> scratch) {
  const Waiting waiting("the client's data");
  const auto header = reader.next();
  if (!header) return header.error();
  const auto copy = std::dynamic_pointer_cast<IncomingCopy>(copies_.await(header->copy));
  if (!copy) return Error{ErrorCode::malformed, "a piece of no copy"};
  outbox_.counters().bytes_from_client.fetch_add(sizeof *header + header->length, std::memory_order_relaxed);
  const auto received = copy->receive(reader, header->offset, scratch);
  if (received) return {};
  const bool broken = received.error().code == ErrorCode::closed;
  return Error{broken ? ErrorCode::lost : received.error().code, received.error().message};
}

bool BulkLinks::next(std::deque<Piece>& queue, const Link* link, Piece& piece) {
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

void BulkLinks::run_sender(Link& link) {
  set_activity(&link.sending, &t_activity);
  send_until_closed(link);
  set_activity(&link.sending, nullptr);
}

void BulkLinks::send_until_closed(Link& link) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceSender sender(compression_);
  Piece piece;
  while (next(queue_, &link, piece)) {
    const Waiting waiting("the client to read");
    const auto sent = piece.copy->send(*link.connection, sender, piece.number, scratch);
    outbox_.counters().bytes_to_client.fetch_add(sender.take_sent(), std::memory_order_relaxed);
    if (!sent) return outbox_.end("a bulk connection failed: " + sent.error().message);
  }
}

void BulkLinks::run_message_sender() {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  Piece piece;
  while (next(messages_, nullptr, piece)) piece.copy->send(outbox_, piece.number, scratch);
}

void BulkLinks::close() {
  std::deque<Piece> unsent;  // let go of without the lock
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

void BulkLinks::stop() {
  close();
  join(links_);
  links_.clear();
  if (message_sender_.joinable()) message_sender_.join();
}

}  // namespace gpupool::worker
