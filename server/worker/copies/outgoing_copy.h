// A copy from the device on the bulk connections. start(): executor's thread. A wait thread queues each piece
// when it is ready; the connections' threads send, concurrently for different pieces.
//
// The gate of the copy's stream opens when the last piece has been sent and the reply that ends the copy was
// passed to the Outbox. So any later message about progress of the stream is behind that reply, and no reply
// has to wait for unsent data.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/peers.h"
#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/staged_copy.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Copies;
class Outbox;
class Peer;

class OutgoingCopy final : public BulkCopy, public std::enable_shared_from_this<OutgoingCopy> {
 public:
  struct Way {
    enum { links, messages, peer } by;
    std::shared_ptr<Peer> server = nullptr;  // for `peer`
    wire::PeerTarget there{};                // for `peer`
  };
  // Registers the copy and enqueues its device part in `stream`. After an error nothing is registered.
  static CUresult start(Copies& copies, Way way, StreamState& stream, const DeviceRows& rows,
                        uint64_t sequence, CUresult reply);
  OutgoingCopy(Copies& copies, Way way, ContextState& context, const DeviceRows& rows, uint64_t sequence,
               CUresult reply);
  ~OutgoingCopy() override;

  const wire::PeerTarget& target() const { return way_.there; }  // for `peer`
  // True once the copy's key was sent on the peer's connection. Used by the peer's sender thread only.
  bool key_sent = false;

  // Sends one piece. After an error the session must end and cancel() ends the copy, or the caller ends it.
  Result<void> send(transport::Connection& connection, compression::PieceSender& sender, uint64_t piece,
                    std::span<std::byte> scratch);
  void send(Outbox& outbox, uint64_t piece, std::span<std::byte> scratch);
  // Ends the copy with the last piece or the first error; later calls have no effect. Any thread.
  void finish(CUresult result);
  void cancel() override;

 private:
  CUresult begin_direct(StreamState& stream);
  CUresult begin_staged(StreamState& stream);
  void queue_when_ready();
  // Queues the pieces as they become ready. Runs on a thread that may block.
  void queue_ready();
  void queue(uint64_t piece);
  // Returns the piece's bytes, valid until end(), or nullopt if the copy is over.
  std::optional<std::span<std::byte>> lend(uint64_t piece, std::span<std::byte> scratch);
  void end(uint64_t piece, bool sent);
  // True if resumable connections may keep references to the device's memory instead of copies.
  bool is_lent() const { return way_.by == Way::links && !staged_ && rows.rows == 1; }
  void take_back();

  Copies& copies_;
  const Way way_;
  const uint64_t sequence_;
  const CUresult reply_;             // deferred error of an earlier command, reported if this copy succeeds
  std::optional<StagedOut> staged_;  // empty: the CPU can access device memory
  CUevent reached_ = nullptr;        // direct copy: passes when the stream reaches the copy
  std::shared_ptr<StreamGate> gate_;
  std::atomic<uint64_t> unsent_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable idle_;
  unsigned active_ = 0;  // number of pieces being sent
  bool finished_ = false;
};

}  // namespace gpupool::worker
