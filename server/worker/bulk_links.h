// The session's bulk connections: each with a thread that receives pieces of copies to the device, and one that sends
// pieces of copies from it. Pieces to send are taken in order by whichever connection is free.
//
// Without them (shared memory has none) a thread sends the pieces as device_data messages of the command connection.
//
// add() and send() may be called by any thread. A connection that breaks within a piece ends the session; one that the
// client closes between pieces is just gone, and so is one of a peer, whatever happens to it. A peer may send pieces of the copies whose keys
// (protocol/peers/proof.h) it has shown on its connection, and is sent none.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "server/worker/bulk_copy.h"
#include "server/worker/dump.h"
#include "server/worker/outbox.h"
#include "server/worker/session.h"

namespace gpupool::worker {

class OutgoingCopy;

class BulkLinks {
 public:
  // `bulk_token`: the session's, of which the keys of copies from peers are derived.
  BulkLinks(BulkCopies& copies, Outbox& outbox, compression::Policy compression, WelcomeBulk welcome, std::string bulk_token)
      : copies_(copies), outbox_(outbox), compression_(compression), welcome_(std::move(welcome)), bulk_token_(std::move(bulk_token)) {}
  ~BulkLinks() { stop(); }
  BulkLinks(const BulkLinks&) = delete;
  BulkLinks& operator=(const BulkLinks&) = delete;

  // When the hello has come; the other side is welcomed here, so that it never uses what any() does not know yet. From a peer, which has
  // shown the key of `peer_copy`: it may break. False: the session has enough of them, or ends.
  bool add(std::unique_ptr<transport::Connection> connection, std::optional<uint64_t> peer_copy);
  // Closes the peers' connections.
  void drop_peers();
  bool any();
  void send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  void send_among_messages(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  // Closes the connections: nothing is received or sent any more. What was still to be sent is cancel()led by the caller.
  void close();
  // Waits for the threads, too.
  void stop();
  // Any thread.
  void describe(admin::WorkerDump& dump);

 private:
  struct Piece {
    std::shared_ptr<OutgoingCopy> copy;
    uint64_t number;
  };
  struct Link {
    std::unique_ptr<transport::Connection> connection;
    bool from_peer = false;
    std::vector<uint64_t> claimed;  // from a peer: the copies that it may send pieces of; the receiver's
    enum : int { opening, open, over } state = opening;
    std::thread receiver, sender;  // peers are sent nothing
    const ThreadActivity* receiving = nullptr;  // of these threads, while they run
    const ThreadActivity* sending = nullptr;
  };
  void run_receiver(Link& link, std::optional<uint64_t> peer_copy);
  // Lets a peer's connection send the copy's pieces. One connection can have a copy, once. Waits until the command has been received.
  Result<void> claim(Link& link, uint64_t copy);
  void receive_until_closed(Link& link, std::optional<uint64_t> peer_copy);
  void send_until_closed(Link& link);
  void set_activity(const ThreadActivity** place, const ThreadActivity* activity);
  bool open(Link& link);
  void run_sender(Link& link);
  void run_message_sender();
  bool next(std::deque<Piece>& queue, const Link* link, Piece& piece);  // false: the end
  static void join(std::vector<std::unique_ptr<Link>>& links);
  Result<void> receive_piece(Link& link, compression::PieceReader& reader, std::span<std::byte> scratch);
  Result<void> receive_key(Link& link, compression::PieceReader& reader, uint64_t copy);

  BulkCopies& copies_;
  Outbox& outbox_;
  const compression::Policy compression_;
  const WelcomeBulk welcome_;
  const std::string bulk_token_;
  std::mutex mutex_;  // what follows; never held during a driver call
  std::condition_variable wake_;
  std::deque<Piece> queue_;
  std::deque<Piece> messages_;
  bool sends_messages_ = false;
  std::vector<std::unique_ptr<Link>> links_;
  std::thread message_sender_;
  bool stopping_ = false;
};

}  // namespace gpupool::worker
