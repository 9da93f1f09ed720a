#include "client/copies/bulk_connections.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "client/process/log.h"
#include "protocol/control/hello_exchange.h"
#include "protocol/wire/copies.h"
#include "protocol/wire/rows.h"

namespace gpupool::client {
namespace {

using transport::Clock;

// Rows shorter than this (bytes) are packed before sending: a memcpy costs less than an entry in a gather
// list.
constexpr uint64_t kShortRow = 2048;
// Time for the session to report why a bulk connection has ended.
constexpr std::chrono::seconds kReasonComes{1};
// A full socket does not distinguish a slow server from a hung one, so the server is pinged during uploads
// that take longer than this.
constexpr std::chrono::milliseconds kQuickUpload{50};

}  // namespace

bool BulkConnections::begin_opening() {
  const std::lock_guard lock(mutex_);
  if (state_.load(std::memory_order_relaxed) != kClosed || preparing_ || parameters_->connections == 0)
    return false;
  state_.store(kOpening, std::memory_order_release);
  return true;
}

bool BulkConnections::ready() {
  const int state = state_.load(std::memory_order_acquire);
  if (state != kClosed) return state == kReady;
  // The session is never destroyed once connected.
  if (begin_opening()) std::thread([this] { open(); }).detach();
  return false;
}

void BulkConnections::open_now() {
  if (begin_opening()) open();
}

std::vector<std::unique_ptr<BulkConnections::Link>> BulkConnections::open_all(
    const Parameters& parameters, const std::optional<Reconnector::Terms>& resume) {
  std::vector<std::unique_ptr<Link>> opened;
  for (unsigned i = 0; i < parameters.connections; ++i) {
    auto link = open_one(parameters, resume, i + 1);
    if (!link) {
      log_debug("cannot open another bulk connection (%s): large copies use %zu",
                link.error().message.c_str(), opened.size());
      break;
    }
    opened.push_back(std::move(*link));
  }
  return opened;
}

// Call with mutex_ held.
void BulkConnections::add(std::vector<std::unique_ptr<Link>> links) {
  for (auto& one : links) {
    Link& link = *one;
    if (closed_) link.connection.close();
    links_.push_back(std::move(one));
    std::thread([this, &link] { run_sender(link); }).detach();
    std::thread([this, &link] { run_receiver(link); }).detach();
  }
  state_.store(links_.empty() ? kUnusable : kReady, std::memory_order_release);
}

void BulkConnections::open() {
  auto opened = open_all(*parameters(), resume_);
  const std::lock_guard lock(mutex_);
  add(std::move(opened));
  posted_.notify_all();
}

struct BulkConnections::Prepared {
  std::shared_ptr<const Parameters> parameters;
  std::optional<Reconnector::Terms> resume;
  std::vector<std::unique_ptr<Link>> links;
};

std::shared_ptr<BulkConnections::Prepared> BulkConnections::prepare(Parameters parameters,
                                                                    Reconnector::Terms terms) {
  auto prepared = std::make_shared<Prepared>();
  prepared->parameters = std::make_shared<const Parameters>(std::move(parameters));
  prepared->resume = std::move(terms);
  {
    std::unique_lock lock(mutex_);
    preparing_ = true;  // what the program's copies rely on stays the same
    posted_.wait(lock, [this] { return state_.load() != kOpening; });
  }
  if (state_.load() != kReady) return prepared;
  prepared->links = open_all(*prepared->parameters, prepared->resume);
  if (!prepared->links.empty()) return prepared;
  stay(prepared);
  return nullptr;
}

void BulkConnections::leave() {
  std::unique_lock lock(mutex_);
  preparing_ = true;
  posted_.wait(lock, [this] { return state_.load() != kOpening; });
  retire(links_);
  posted_.notify_all();
}

void BulkConnections::stay(const std::shared_ptr<Prepared>& prepared) {
  const std::lock_guard lock(mutex_);
  preparing_ = false;
  retire(prepared->links);
}

// Their threads use them until the connections have ended, and are never joined. Requires mutex_.
void BulkConnections::retire(std::vector<std::unique_ptr<Link>>& links) {
  for (auto& link : links) {
    link->retired.store(true, std::memory_order_release);
    link->connection.close();
    retired_.push_back(std::move(link));
  }
  links.clear();
}

void BulkConnections::switch_to(const std::shared_ptr<Prepared>& prepared) {
  const std::lock_guard lock(mutex_);
  preparing_ = false;
  retire(links_);
  posted_.notify_all();
  parameters_ = std::move(prepared->parameters);
  resume_ = std::move(prepared->resume);
  if (state_.load() == kReady)
    add(std::move(prepared->links));
  else
    state_.store(kClosed);
  retire(prepared->links);
}

Result<std::unique_ptr<BulkConnections::Link>> BulkConnections::open_one(
    const Parameters& parameters, const std::optional<Reconnector::Terms>& resume, unsigned number) {
  transport::Options options = parameters.options;
  options.bulk = true;
  transport::Endpoint server = parameters.server;
  if (options.rdma.use != transport::RdmaOptions::Use::never) server.scheme = "rdma";
  auto connection = transport::connect(server, options);
  if (!connection) return connection.error();
  const auto deadline =
      Clock::now() + parameters.options.connect_timeout + parameters.options.dead_peer_timeout;
  hello::Hello hello;
  hello.protocol_version = wire::kProtocolVersion;
  hello.session_id = parameters.peer_end.session_id;
  hello.bulk_token = parameters.peer_end.token;
  hello.rdma = static_cast<uint32_t>(options.rdma.use);
  if (resume) hello.bulk_link = number;
  const auto reply = hello::exchange(**connection, hello, deadline);
  if (!reply) return reply.error();
  if (auto upgraded = (*connection)->upgrade(transport::Side::client, deadline); !upgraded)
    return upgraded.error();
  auto link = std::make_unique<Link>(std::move(*connection));
  const bool resumes = resume && reply->resume_timeout_ms != 0;
  link->sender = std::make_unique<compression::PieceSender>(parameters.compression,
                                                            resumes ? &link->connection : nullptr);
  if (resumes) {
    Reconnector::Terms terms = *resume;
    terms.server = server;
    terms.options = options;
    terms.hello.bulk_link = number;
    link->reconnector.start(std::move(terms));
  }
  return link;
}

std::shared_ptr<Upload> BulkConnections::post(const Upload& upload) {
  auto posted = std::make_shared<Upload>(upload);
  const uint64_t piece = wire::bulk_piece_bytes(upload.width, upload.rows);
  posted->unsent = (upload.width * upload.rows + piece - 1) / piece;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return posted;
    unread_.fetch_add(1, std::memory_order_release);
    uploads_.push_back(posted);
  }
  posted_.notify_all();
  return posted;
}

bool BulkConnections::wait_read(const Upload& upload) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return (closed_ && sending_ == 0) || upload.unsent == 0; };
  if (!read_.wait_for(lock, kQuickUpload, done)) {
    lock.unlock();
    receiver_.watch_server();
    lock.lock();
    read_.wait(lock, done);
    receiver_.stop_watching();
  }
  return upload.unsent == 0;
}

void BulkConnections::run_sender(Link& link) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [&] { return closed_ || link.retired || !uploads_.empty(); });
    if (closed_ || link.retired) return;
    const std::shared_ptr<Upload> upload = uploads_.front();
    const uint64_t piece = upload->next++;
    const uint64_t bytes = wire::bulk_piece_bytes(upload->width, upload->rows);
    const bool is_last = upload->next * bytes >= upload->width * upload->rows;
    if (is_last) uploads_.pop_front();
    ++sending_;
    if (is_last && resume_) end_lending(lock, *upload);
    lock.unlock();
    const auto sent = send_piece(link.connection, *link.sender, *upload, piece, scratch, !is_last);
    lock.lock();
    --sending_;
    if (sent && --upload->unsent == 0) unread_.fetch_sub(1, std::memory_order_release);
    if (upload->unsent <= 1 || closed_) read_.notify_all();
    if (sent) continue;
    lock.unlock();
    return report(link, sent.error());
  }
}

// Call before the last piece is sent, which is not lent: as soon as the server has it, the program may learn
// that the copy is done, and free the memory (PieceSender::send_last). Waits until the other pieces have been
// sent, and ends all reading of the memory for them.
void BulkConnections::end_lending(std::unique_lock<std::mutex>& lock, const Upload& upload) {
  read_.wait(lock, [&] { return closed_ || upload.unsent == 1; });
  std::vector<transport::ResumableConnection*> connections;
  for (const auto& link : links_) connections.push_back(&link->connection);
  lock.unlock();
  for (auto* const connection : connections) connection->take_back(upload.span());
  lock.lock();
}

Result<void> BulkConnections::send_piece(transport::Connection& connection, compression::PieceSender& sender,
                                         const Upload& upload, uint64_t piece,
                                         std::vector<std::byte>& scratch, bool lends) {
  const uint64_t total = upload.width * upload.rows;
  const uint64_t bytes = wire::bulk_piece_bytes(upload.width, upload.rows);
  wire::BulkHeader header;
  header.copy = upload.sequence;
  header.offset = piece * bytes;
  header.length = static_cast<uint32_t>(std::min(bytes, total - header.offset));
  std::vector<iovec> parts;
  if (upload.width < kShortRow && upload.rows != 1) {
    wire::pack_rows(upload.memory, upload.width, upload.pitch, header.offset, scratch.data(), header.length);
    parts.push_back({scratch.data(), header.length});
  } else {
    wire::for_each_row(upload.width, upload.pitch, header.offset, header.length,
                       [&](uint64_t from, uint64_t, uint64_t size) {
                         parts.push_back({const_cast<std::byte*>(upload.memory + from), size});
                         return true;
                       });
  }
  return lends ? sender.send(connection, header, parts, upload.span())
               : sender.send_last(connection, header, parts);
}

void BulkConnections::run_receiver(Link& link) {
  std::vector<std::byte> scratch(wire::kBulkChunkBytes);
  compression::PieceReader reader(link.connection, link.sender.get());
  while (true) {
    const auto received = receive_piece(reader, scratch);
    if (!received) return report(link, received.error());
  }
}

Result<void> BulkConnections::receive_piece(compression::PieceReader& reader,
                                            std::vector<std::byte>& scratch) {
  const auto header = reader.next();
  if (!header) return header.error();
  const auto transfer = receiver_.begin_piece(header->copy, header->offset);
  if (!transfer) return reader.skip();
  const uint64_t length = transfer->piece_at(header->offset);
  Result<void> received;
  if (!reader.fits(length)) {
    received = Error{ErrorCode::malformed, "received a piece of the wrong size"};
  } else if (transfer->rows == 1) {
    received = reader.read({transfer->destination + header->offset, length});
  } else {
    received = reader.read({scratch.data(), length});
    if (received) {
      wire::spread_rows(transfer->destination, transfer->width, transfer->pitch, header->offset,
                        scratch.data(), length);
    }
  }
  receiver_.end_piece(header->copy, received ? length : 0);
  return received;
}

void BulkConnections::report(const Link& link, const Error& error) {
  if (link.retired.load(std::memory_order_acquire)) return;
  receiver_.await_failure(Clock::now() + kReasonComes);
  failed_({error.code, "a bulk connection failed: " + error.message});
}

void BulkConnections::fail() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  uploads_.clear();
  for (const auto& link : links_) {
    link->connection.close();
    link->connection.drop_kept();
  }
  posted_.notify_all();
  read_.notify_all();
  read_.wait(lock, [this] { return sending_ == 0; });
  unread_.store(0, std::memory_order_release);
  read_.notify_all();
}

void BulkConnections::abandon() {
  for (const auto& link : links_) {
    if (const int descriptor = link->connection.release_descriptor(); descriptor >= 0) close(descriptor);
  }
}

}  // namespace gpupool::client
