// The session's bulk connections: large copies go over them, so that neither the commands nor other copies wait behind the
// data. Each has a thread that sends pieces and one that receives them, straight from and to the program's memory.
//
// They are opened in the background when the first large copy asks for them (GPUPOOL_BULK_CONNECTIONS=N: N of them, at the
// start); until then, and where the server has none,
// copies travel on the command connection. Pieces are sent in the order of the commands that announced them, by whichever
// connection is free. Any thread. A connection that breaks fails the session.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/receiver.h"
#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"

namespace gpupool::client {

// Rows in the program's memory, on their way to the device.
struct Upload {
  uint64_t sequence = 0;  // of the command
  const std::byte* memory = nullptr;
  uint64_t pitch = 0;
  uint64_t width = 0;
  uint64_t rows = 1;
  uint64_t next = 0;      // the rest: under BulkLinks' mutex
  uint64_t unsent = 0;    // pieces
};

class BulkLinks {
 public:
  struct Offer {  // of the server's hello
    transport::Endpoint server;    // tcp; options.rdma.use says whether rdma follows
    transport::Options options;
    std::string session_id;
    std::string token;         // empty: the server takes no bulk connections at all
    unsigned connections = 0;  // 0: none may be opened
    compression::Policy compression = compression::Policy::off;
    // For copies from other servers: the address under which they may reach this one, and the version of what servers say to each other.
    std::optional<std::array<uint8_t, 16>> address = std::nullopt;
    uint32_t peer_protocol = 0;
  };
  BulkLinks(Receiver& receiver, std::function<void(Error)> failed) : receiver_(receiver), failed_(std::move(failed)) {}

  void take_offer(Offer offer) { offer_ = std::move(offer); }
  const Offer& offer() const { return offer_; }
  // False: there are none yet, or never. The first call starts opening them.
  bool ready();
  // Opens them now, and waits for it.
  void open_now();
  // In the order of the sequence numbers, before the command itself can reach the server.
  std::shared_ptr<Upload> post(const Upload& upload);
  // Until its memory has been read; false: the session has failed.
  bool wait_read(const Upload& upload);
  // Is anything posted that has not been read?
  bool reading() const { return unread_.load(std::memory_order_acquire) != 0; }
  // Returns when no thread reads or sends any more.
  void fail();
  // In a forked child.
  void abandon();

 private:
  void open();
  Result<std::unique_ptr<transport::Connection>> open_one();
  void run_sender(transport::Connection& connection);
  void run_receiver(transport::Connection& connection);
  Result<void> send_piece(transport::Connection& connection, compression::PieceSender& sender, const Upload& upload,
                          uint64_t piece, std::vector<std::byte>& scratch);
  Result<void> receive_piece(compression::PieceReader& reader, std::vector<std::byte>& scratch);
  void report(const Error& error);

  Receiver& receiver_;
  const std::function<void(Error)> failed_;
  Offer offer_;
  enum State : int { kClosed, kOpening, kReady, kUnusable };
  std::atomic<int> state_{kClosed};
  std::atomic<size_t> unread_{0};

  std::mutex mutex_;  // what follows
  std::condition_variable posted_;
  std::condition_variable read_;
  std::deque<std::shared_ptr<Upload>> uploads_;
  std::vector<std::unique_ptr<transport::Connection>> connections_;
  unsigned sending_ = 0;  // threads that read the program's memory
  bool over_ = false;
};

}  // namespace gpupool::client
