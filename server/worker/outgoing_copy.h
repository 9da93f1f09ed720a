// A copy from the device on the bulk connections. start() belongs to the executor's thread; a wait thread sees that a piece
// is ready and queues it; the connections' threads send, each a different piece at the same time.
//
// Its gate opens when the last piece has been sent and the reply that ends the copy is on its way. So whatever tells the
// client later that this stream got further is behind that reply, and no answer has to look for unsent data.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "protocol/compression/pieces.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/peers.h"
#include "server/worker/bulk_copy.h"
#include "server/worker/staged_copy.h"
#include "server/worker/stream_gates.h"

namespace gpupool::worker {

class Executor;
class Outbox;
class Peer;

class OutgoingCopy final : public BulkCopy, public std::enable_shared_from_this<OutgoingCopy> {
 public:
  struct Way {
    enum { links, messages, peer } by;
    std::shared_ptr<Peer> server = nullptr;  // by peer
    wire::PeerTarget there{};                // likewise
  };
  // Registers the copy and gives `stream` its part. With an error nothing was registered.
  static CUresult start(Executor& session, Way way, StreamState& stream, const DeviceRows& rows, uint64_t sequence,
                        CUresult reply);
  OutgoingCopy(Executor& session, Way way, ContextState& context, const DeviceRows& rows, uint64_t sequence, CUresult reply);
  ~OutgoingCopy() override;

  const wire::PeerTarget& target() const { return way_.there; }  // by peer
  // True once the peer's connection has the copy's key. The peer's sender alone.
  bool key_sent = false;

  // After an error the session must end, and the copy is left to cancel(), or the caller ends it.
  Result<void> send(transport::Connection& connection, compression::PieceSender& sender, uint64_t piece,
                    std::span<std::byte> scratch);
  void send(Outbox& outbox, uint64_t piece, std::span<std::byte> scratch);
  // Ends the copy: once, by the last piece or by the first error. Any thread.
  void finish(CUresult result);
  void cancel() override;

 private:
  CUresult begin_direct(StreamState& stream);
  CUresult begin_staged(StreamState& stream);
  void hand_over();
  // On a thread that may wait: queues the pieces as they are ready.
  void queue_ready();
  void queue(uint64_t piece);
  // The piece's bytes, for the time between them; nullopt: the copy is over.
  std::optional<std::span<std::byte>> lend(uint64_t piece, std::span<std::byte> scratch);
  void end(uint64_t piece, bool sent);

  Executor& session_;
  const Way way_;
  const uint64_t sequence_;
  const CUresult reply_;     // of an earlier command, to be told with this copy's success
  std::optional<StagedOut> staged_;     // empty: the CPU reaches the device's memory
  CUevent reached_ = nullptr;  // direct: the stream has come to the copy
  std::shared_ptr<StreamGate> gate_;
  std::atomic<uint64_t> unsent_;
  std::mutex mutex_;         // what follows
  std::condition_variable idle_;
  unsigned active_ = 0;      // pieces that are being sent
  bool finished_ = false;
};

}  // namespace gpupool::worker
