// A copy to the device on the bulk connections. begin() and what is before it belong to the executor's thread, receive() to the connections'
// threads, each for a different piece at the same time.
//
// Data may come before the stream gets to the copy, or while the stream does not get on with it. Then it stays in staging memory or, as far as
// BulkCopies has room, in ordinary memory, so that the copy does not keep the connections from other copies. A copy that could not begin is
// registered as well: the client sends its data all the same, which goes nowhere.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/compression/pieces.h"
#include "server/worker/bulk_copy.h"
#include "server/worker/staged_copy.h"
#include "server/worker/stream_gates.h"

namespace gpupool::worker {

class Executor;

class IncomingCopy final : public BulkCopy, public std::enable_shared_from_this<IncomingCopy> {
 public:
  // `sequence`: of the command. `context` may be null: the data is thrown away.
  IncomingCopy(Executor& session, uint64_t sequence, ContextState* context, const DeviceRows& rows);

  // Takes staging memory for data that comes before begin(), as far as there is some.
  void prepare(ContextState& context);
  // The stream has come to the copy, and goes on when all of its data is there. `orders_streams`: kCopyOrdersStreams.
  CUresult begin(StreamState& stream, bool orders_streams);
  // In place of begin(): the data is thrown away.
  void begin_nowhere();

  // The bytes of the piece at `offset`, whose header `reader` has read. The last one ends the copy's registration.
  Result<void> receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch);
  // True once: another server that has shown the copy's key sends the data.
  bool claim() { return !claimed_.exchange(true); }
  void cancel() override;

 private:
  enum class Way { undecided, direct, staged, nowhere };

  // *kept: the piece lies in ordinary memory, and does not count as received yet.
  Result<void> receive_piece(compression::PieceReader& reader, uint64_t piece, std::span<std::byte> scratch, bool* kept);
  std::optional<Result<void>> receive_staged(compression::PieceReader& reader, uint64_t piece, std::span<std::byte> packed);
  Result<void> receive_early(compression::PieceReader& reader, uint64_t piece, bool* kept);
  void pass_on_early();
  void pass_on();
  void place(uint64_t piece, std::span<const std::byte> data);
  Way way();
  // So many pieces have got to their place, or failed to.
  void count(uint64_t received);
  Way choose_way(StreamState& stream);
  void decide(Way way);
  void finish(StreamState& stream, bool orders_streams);

  Executor& session_;
  const uint64_t sequence_;
  std::optional<StagedIn> staged_;
  std::atomic<bool> claimed_{false};

  std::mutex mutex_;            // what follows
  std::condition_variable changed_;
  Way way_ = Way::undecided;
  bool begun_ = false;
  std::map<uint64_t, std::vector<std::byte>> early_;  // pieces in ordinary memory
  bool passing_ = false;        // pass_on() is under way
  std::shared_ptr<StreamGate> gate_;
  std::vector<bool> seen_;
  uint64_t missing_;
  unsigned active_ = 0;         // pieces that are being received
  bool over_ = false;
};

}  // namespace gpupool::worker
