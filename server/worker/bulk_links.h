// The session's bulk connections: each with a thread that receives pieces of copies to the device, and one that sends
// pieces of copies from it. Pieces to send are taken in order by whichever connection is free.
//
// Without them (shared memory has none) a thread sends the pieces as device_data messages of the command connection.
//
// add() and send() may be called by any thread. A connection that breaks within a piece ends the session; one that the
// client closes between pieces is just gone.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "server/worker/bulk_copy.h"
#include "server/worker/outbox.h"

namespace gpupool::worker {

class OutgoingCopy;

class BulkLinks {
 public:
  BulkLinks(BulkCopies& copies, Outbox& outbox, compression::Policy compression)
      : copies_(copies), outbox_(outbox), compression_(compression) {}
  ~BulkLinks() { stop(); }
  BulkLinks(const BulkLinks&) = delete;
  BulkLinks& operator=(const BulkLinks&) = delete;

  // After the hello in both directions. False: the session has enough of them, or ends.
  bool add(std::unique_ptr<transport::Connection> connection);
  bool any();
  void send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  void send_among_messages(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  // Closes the connections and waits for the threads; what was still to be sent ends with an error.
  void stop();

 private:
  struct Piece {
    std::shared_ptr<OutgoingCopy> copy;
    uint64_t number;
  };
  void run_receiver(transport::Connection& connection);
  void run_sender(transport::Connection& connection);
  void run_message_sender();
  bool next(std::deque<Piece>& queue, Piece& piece);  // false: the end
  Result<void> receive_piece(compression::PieceReader& reader, std::span<std::byte> scratch);

  BulkCopies& copies_;
  Outbox& outbox_;
  const compression::Policy compression_;
  std::mutex mutex_;  // what follows
  std::condition_variable wake_;
  std::deque<Piece> queue_;
  std::deque<Piece> messages_;
  bool sends_messages_ = false;
  std::vector<std::unique_ptr<transport::Connection>> connections_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

}  // namespace gpupool::worker
