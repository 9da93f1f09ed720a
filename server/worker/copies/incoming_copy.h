// A copy to the device on the bulk connections. prepare(), begin(), discard_data() and cancel(): executor's
// thread. receive(): the connections' threads, concurrently for different pieces.
//
// Data may arrive before the stream reaches the copy, or while the stream is stalled. It is then kept in
// staging memory or, as far as BulkCopies has room, in ordinary memory, so that the connections are free for
// other copies. A copy that failed to begin is registered as well: the client sends its data regardless, and
// it is discarded.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "protocol/compression/pieces.h"
#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/staged_copy.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Copies;

class IncomingCopy final : public BulkCopy, public std::enable_shared_from_this<IncomingCopy> {
 public:
  // `sequence`: of the command. `context` is null if the data is to be discarded.
  IncomingCopy(Copies& copies, uint64_t sequence, ContextState* context, const DeviceRows& rows);

  // Acquires staging memory, if available, for data that arrives before begin().
  void prepare(ContextState& context);
  // Call when the stream has reached the copy. The stream continues when all data has arrived.
  // `orders_streams`: kCopyOrdersStreams.
  CUresult begin(StreamState& stream, bool orders_streams);
  // Call instead of begin() to discard the data.
  void discard_data();

  // Receives the piece at `offset`, whose header `reader` has read. The last piece unregisters the copy.
  Result<void> receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch);
  // Returns true once: for the first other server that has presented the copy's key.
  bool take_key_once() { return !claimed_.exchange(true); }
  void cancel() override;

 private:
  // How the data gets to its rows; undecided until begin() at the latest.
  enum class Way { undecided, direct, staged, discard };

  // *kept: the piece is in ordinary memory, and does not count as received yet.
  Result<void> receive_piece(compression::PieceReader& reader, uint64_t piece, std::span<std::byte> scratch,
                             bool* kept);
  std::optional<Result<void>> receive_staged(compression::PieceReader& reader, uint64_t piece,
                                             std::span<std::byte> packed);
  Result<void> receive_early(compression::PieceReader& reader, uint64_t piece, bool* kept);
  void start_placing_early_pieces();
  void place_early_pieces();
  void place(uint64_t piece, std::span<const std::byte> data);
  Way way();
  // Counts pieces that have reached their rows, or failed to.
  void count(uint64_t received);
  Way choose_way(StreamState& stream);
  void decide(Way way);
  void finish(StreamState& stream, bool orders_streams);

  Copies& copies_;
  const uint64_t sequence_;
  std::optional<StagedIn> staged_;
  std::atomic<bool> claimed_{false};

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  Way way_ = Way::undecided;
  bool begun_ = false;
  std::map<uint64_t, std::vector<std::byte>> early_;  // pieces in ordinary memory, by number
  bool placing_early_ = false;                        // place_early_pieces() is running or submitted
  std::shared_ptr<StreamGate> gate_;
  std::vector<bool> seen_;
  uint64_t missing_;
  unsigned active_ = 0;  // number of threads that receive or place pieces
  bool over_ = false;
};

}  // namespace gpupool::worker
