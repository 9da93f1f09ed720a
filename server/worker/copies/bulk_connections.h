// The session's bulk connections. Each has one thread that receives pieces of copies to the device and one
// that sends pieces of copies from it; whichever connection is free sends the next piece.
//
// Without bulk connections (shared memory has none), a thread sends the pieces as device_data messages on the
// command connection.
//
// add() and send() may be called by any thread. A connection that breaks within a piece ends the session; a
// connection that the client closes between pieces is just removed, and so is any connection of another
// server (a peer), whatever happens to it. A peer may send pieces of a copy only after it has presented the
// copy's key (protocol/peers/proof.h) on its connection; nothing is sent to a peer.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "server/worker/copies/bulk_copy.h"
#include "server/worker/session/dump.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/session_start.h"

namespace gpupool::worker {

class OutgoingCopy;

// A connection below the one that is added, which the client can resume.
struct ResumableLink {
  transport::ResumableConnection* connection = nullptr;  // null: it cannot
  uint64_t number = 0;                                   // Hello.bulk_link
  const Resumption::Terms* terms = nullptr;
};

class BulkConnections {
 public:
  // `bulk_token`: the session's token, from which the keys of copies from peers are derived.
  BulkConnections(BulkCopies& copies, Outbox& outbox, compression::Policy compression, WelcomeBulk welcome,
                  std::string bulk_token)
      : copies_(copies),
        outbox_(outbox),
        compression_(compression),
        welcome_(std::move(welcome)),
        bulk_token_(std::move(bulk_token)) {}
  ~BulkConnections() { stop(); }
  BulkConnections(const BulkConnections&) = delete;
  BulkConnections& operator=(const BulkConnections&) = delete;

  // Adds a connection whose hello has arrived. The welcome is sent by this connection's thread, so the client
  // never uses a connection that any() does not count yet. `peer_copy`: the connection is of a peer that has
  // presented this copy's key. Returns false if the session has too many connections or is ending.
  bool add(std::unique_ptr<transport::Connection> connection, std::optional<uint64_t> peer_copy,
           ResumableLink resumable = {});
  // Closes the connections of peers.
  void drop_peers();
  bool any();
  void send(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  // On return no connection reads this memory, although its bytes may have to be sent again.
  void take_back(std::span<const std::byte> memory);
  void send_among_messages(std::shared_ptr<OutgoingCopy> copy, uint64_t piece);
  // Closes all connections; nothing is received or sent afterwards. The caller must cancel() the copies with
  // unsent pieces.
  void close();
  // Closes all connections and joins their threads.
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
    ResumableLink resumable;
    std::optional<Resumption> resumption;            // once it is open, if it is resumable
    std::optional<compression::PieceSender> pieces;  // set before the threads start
    bool from_peer = false;
    // Copies that a peer has presented keys of; used by the receiver thread only.
    std::vector<uint64_t> claimed;
    enum : int { opening, open, over } state = opening;
    std::thread receiver, sender;  // no sender for a peer
    // Activity of the receiver and the sender thread, while they run.
    const ThreadActivity* receiving = nullptr;
    const ThreadActivity* sending = nullptr;
  };
  void run_receiver(Link& link, std::optional<uint64_t> peer_copy);
  // Allows the peer's connection to send the copy's pieces. Each copy can be claimed once. Waits until the
  // copy's command has been received.
  Result<void> accept_key(Link& link, uint64_t copy);
  void receive_until_closed(Link& link, std::optional<uint64_t> peer_copy);
  void send_until_closed(Link& link);
  void set_activity(const ThreadActivity** place, const ThreadActivity* activity);
  bool open(Link& link);
  void run_sender(Link& link);
  void run_message_sender();
  bool next(std::deque<Piece>& queue, const Link* link, Piece& piece);  // false: stop
  static void join(std::vector<std::unique_ptr<Link>>& links);
  Result<void> receive_piece(Link& link, compression::PieceReader& reader, std::span<std::byte> scratch);
  Result<void> receive_key(Link& link, compression::PieceReader& reader, uint64_t copy);

  BulkCopies& copies_;
  Outbox& outbox_;
  const compression::Policy compression_;
  const WelcomeBulk welcome_;
  const std::string bulk_token_;
  std::mutex mutex_;  // guards the rest; never held during a driver call
  std::condition_variable wake_;
  std::deque<Piece> queue_;
  std::deque<Piece> messages_;
  bool sends_messages_ = false;
  std::vector<std::unique_ptr<Link>> links_;
  std::thread message_sender_;
  bool stopping_ = false;
};

}  // namespace gpupool::worker
