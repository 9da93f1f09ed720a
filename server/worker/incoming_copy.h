// A copy to the device on the bulk connections. begin() and what is before it belong to the executor's thread, receive() to the connections'
// threads, each for a different piece at the same time.
//
// Data may come before the stream gets to the copy: then it stays in staging memory, as much as there is. A copy that could not begin is
// registered as well: the client sends its data all the same, which goes nowhere.
#pragma once
#include <condition_variable>
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
  // `context` may be null: the data is thrown away.
  IncomingCopy(Executor& session, ContextState* context, const DeviceRows& rows);

  // Takes staging memory for data that comes before begin(), as far as there is some.
  void prepare(ContextState& context);
  // The stream has come to the copy, and goes on when all of its data is there. `orders_streams`: kCopyOrdersStreams.
  CUresult begin(StreamState& stream, bool orders_streams);
  // In place of begin(): the data is thrown away.
  void begin_nowhere();

  // The bytes of the piece at `offset`, whose header `reader` has read. True: that was the last piece.
  Result<bool> receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch);
  void cancel() override;

 private:
  enum class Way { undecided, direct, staged, nowhere };

  Result<void> receive_piece(compression::PieceReader& reader, Way way, uint64_t piece, std::span<std::byte> scratch);
  Way choose_way(StreamState& stream);
  void decide(Way way);
  void finish(StreamState& stream, bool orders_streams);

  Executor& session_;
  std::optional<StagedIn> staged_;

  std::mutex mutex_;            // what follows
  std::condition_variable changed_;
  Way way_ = Way::undecided;
  std::shared_ptr<StreamGate> gate_;
  std::vector<bool> seen_;
  uint64_t missing_;
  unsigned active_ = 0;         // pieces that are being received
  bool over_ = false;
};

}  // namespace gpupool::worker
