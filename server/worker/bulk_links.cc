#include "server/worker/bulk_links.h"

#include <system_error>
#include <utility>

#include "server/worker/incoming_copy.h"
#include "server/worker/outgoing_copy.h"

namespace gpupool::worker {

bool BulkLinks::add(std::unique_ptr<transport::Connection> connection) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || connections_.size() >= wire::kMaxBulkConnections) return false;
  transport::Connection& link = *connection;
  try {
    connections_.push_back(std::move(connection));
    threads_.emplace_back([this, &link] { run_receiver(link); });
    threads_.emplace_back([this, &link] { run_sender(link); });
  } catch (const std::system_error&) {  // no thread to be had: a connection that serves one direction is no use
    link.close();
    return false;
  }
  return true;
}

bool BulkLinks::any() {
  const std::lock_guard lock(mutex_);
  return !connections_.empty() && !stopping_;
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
      if (!stopping_ && !sends_messages_) threads_.emplace_back([this] { run_message_sender(); });
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

void BulkLinks::run_receiver(transport::Connection& connection) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceReader reader(connection);
  while (true) {
    const auto received = receive_piece(reader, scratch);
    if (received) continue;
    // The client is leaving: its command connection says so, too.
    if (received.error().code != ErrorCode::closed) {
      outbox_.end("a bulk connection failed: " + received.error().message);
    }
    return;
  }
}

Result<void> BulkLinks::receive_piece(compression::PieceReader& reader, std::span<std::byte> scratch) {
  const auto header = reader.next();
  if (!header) return header.error();
  const auto copy = std::dynamic_pointer_cast<IncomingCopy>(copies_.await(header->copy));
  if (!copy) return Error{ErrorCode::malformed, "a piece of no copy"};
  const auto last = copy->receive(reader, header->offset, scratch);
  if (!last) {
    const bool broken = last.error().code == ErrorCode::closed;
    return Error{broken ? ErrorCode::lost : last.error().code, last.error().message};
  }
  if (*last) copies_.remove(header->copy);
  return {};
}

bool BulkLinks::next(std::deque<Piece>& queue, Piece& piece) {
  piece.copy = nullptr;
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopping_ || !queue.empty(); });
  if (stopping_) return false;
  piece = std::move(queue.front());
  queue.pop_front();
  return true;
}

void BulkLinks::run_sender(transport::Connection& connection) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceSender sender(compression_);
  Piece piece;
  while (next(queue_, piece)) {
    const auto sent = piece.copy->send(connection, sender, piece.number, scratch);
    if (!sent) return outbox_.end("a bulk connection failed: " + sent.error().message);
  }
}

void BulkLinks::run_message_sender() {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  Piece piece;
  while (next(messages_, piece)) piece.copy->send(outbox_, piece.number, scratch);
}

void BulkLinks::stop() {
  std::deque<Piece> unsent;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    unsent.swap(queue_);
    unsent.insert(unsent.end(), messages_.begin(), messages_.end());
    messages_.clear();
    threads.swap(threads_);
    for (const auto& connection : connections_) connection->close();
  }
  wake_.notify_all();
  copies_.end();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gpupool::worker
