// A session's bulk connections. Large copies use them, so that neither commands nor other copies wait behind
// the data. Each connection has one thread that sends pieces and one that receives them, directly from and to
// the program's memory.
//
// They are opened in the background at the first large copy, or at connect if GPUPOOL_BULK_CONNECTIONS is
// set. Until then, and if the server accepts none, copies use the command connection. Pieces are sent in the
// order of the commands that announce them, on whichever connection is free. Thread-safe. A broken bulk
// connection fails the session.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/session/peer_route.h"
#include "client/session/receiver.h"
#include "client/session/reconnector.h"
#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"

namespace gpupool::client {

// Rows in the program's memory that are being sent to the device.
struct Upload {
  uint64_t sequence = 0;  // of the announcing command
  const std::byte* memory = nullptr;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 1;
  uint64_t next = 0;    // next piece to send; under BulkConnections' mutex
  uint64_t unsent = 0;  // pieces not yet sent; under BulkConnections' mutex

  std::span<const std::byte> span() const { return {memory, pitch * (rows - 1) + width}; }
};

class BulkConnections {
 public:
  struct Parameters {            // terms from the server's HelloReply
    transport::Endpoint server;  // a tcp address; options.rdma.use says whether to upgrade to RDMA
    transport::Options options;
    unsigned connections = 0;  // most that may be opened; 0: none
    compression::Policy compression = compression::Policy::off;
    // The session's id and token, and what copies between this server and others need. Without a token the
    // server accepts no bulk connections at all.
    PeerEnd peer_end = {};
  };
  BulkConnections(Receiver& receiver, std::function<void(Error)> failed)
      : receiver_(receiver), failed_(std::move(failed)) {}

  void configure(Parameters parameters) {
    parameters_ = std::make_shared<const Parameters>(std::move(parameters));
  }
  // The connections can be resumed, with these terms but for server, options and number. Call before ready().
  void resume_with(Reconnector::Terms terms) { resume_ = std::move(terms); }
  // Returns the terms of the current server; never null. A migration replaces the object and does not change
  // it.
  std::shared_ptr<const Parameters> parameters() const {
    const std::lock_guard lock(mutex_);
    return parameters_;
  }
  // The session moves to another server: opens connections there if there are any now; null: none can be
  // opened. switch_to() then replaces the present ones; nothing may be underway on them.
  struct Prepared;
  // stay() follows instead if the session does not move; they are closed then.
  std::shared_ptr<Prepared> prepare(Parameters parameters, Reconnector::Terms terms);
  void stay(const std::shared_ptr<Prepared>& prepared);
  void switch_to(const std::shared_ptr<Prepared>& prepared);
  // The session leaves its server: closes the present ones. prepare() and switch_to() follow, perhaps much
  // later; nothing may be underway until then.
  void leave();
  // Returns true if bulk connections are open. The first call starts to open them in the background.
  bool ready();
  // Opens them and blocks until they are open.
  void open_now();
  // Queues the upload. Call in the order of the sequence numbers, before the announcing command can reach the
  // server.
  std::shared_ptr<Upload> post(const Upload& upload);
  // Blocks until the upload's memory has been read. Returns false if the session has failed.
  bool wait_read(const Upload& upload);
  // True while a posted upload has not been read completely.
  bool reading() const { return unread_.load(std::memory_order_acquire) != 0; }
  // Closes the connections. On return no thread reads the program's memory or sends.
  void fail();
  // In a forked child: closes the child's descriptors. Takes no lock.
  void abandon();

 private:
  struct Link {
    explicit Link(std::unique_ptr<transport::Connection> first) : connection(std::move(first)) {}
    transport::ResumableConnection connection;
    Reconnector reconnector{connection, nullptr};
    std::unique_ptr<compression::PieceSender> sender;
    std::atomic<bool> retired{false};  // its threads end
  };
  static std::vector<std::unique_ptr<Link>> open_all(const Parameters& parameters,
                                                     const std::optional<Reconnector::Terms>& resume);
  static Result<std::unique_ptr<Link>> open_one(const Parameters& parameters,
                                                const std::optional<Reconnector::Terms>& resume,
                                                unsigned number);
  void retire(std::vector<std::unique_ptr<Link>>& links);
  bool begin_opening();
  void open();
  void add(std::vector<std::unique_ptr<Link>> links);
  void run_sender(Link& link);
  void run_receiver(Link& link);
  void end_lending(std::unique_lock<std::mutex>& lock, const Upload& upload);
  Result<void> send_piece(transport::Connection& connection, compression::PieceSender& sender,
                          const Upload& upload, uint64_t piece, std::vector<std::byte>& scratch, bool lends);
  Result<void> receive_piece(compression::PieceReader& reader, std::vector<std::byte>& scratch);
  void report(const Link& link, const Error& error);

  Receiver& receiver_;
  const std::function<void(Error)> failed_;
  std::shared_ptr<const Parameters> parameters_ = std::make_shared<const Parameters>();
  std::optional<Reconnector::Terms> resume_;
  enum State : int { kClosed, kOpening, kReady, kUnusable };
  std::atomic<int> state_{kClosed};
  std::atomic<size_t> unread_{0};

  mutable std::mutex mutex_;  // guards the members below, and parameters_ and resume_ while they change
  std::condition_variable posted_;
  std::condition_variable read_;
  std::deque<std::shared_ptr<Upload>> uploads_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Link>> retired_;  // their threads may still end
  bool preparing_ = false;  // between prepare() and stay() or switch_to(): none are opened
  unsigned sending_ = 0;    // threads that are reading the program's memory
  bool closed_ = false;
};

}  // namespace gpupool::client
