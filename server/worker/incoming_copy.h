// A copy to the device on the bulk connections. start() belongs to the executor's thread, receive() to the connections'
// threads, each for a different piece at the same time.
//
// A copy that could not be started is registered as well: the client sends its data all the same, which goes nowhere.
#pragma once
#include "protocol/compression/pieces.h"
#include "server/worker/bulk_copy.h"

namespace gpupool::worker {

class Executor;

class IncomingCopy final : public BulkCopy {
 public:
  // Enqueues what `stream` has to do (null: nothing, the data is thrown away).
  static std::shared_ptr<IncomingCopy> start(Executor& session, StreamState* stream, const DeviceRows& rows,
                                             CUresult* result);
  IncomingCopy(const DeviceApi& api, ContextState* context, const DeviceRows& rows);

  // The bytes of the piece at `offset`, whose header `reader` has read. True: that was the last piece.
  Result<bool> receive(compression::PieceReader& reader, uint64_t offset, std::span<std::byte> scratch);
  void cancel() override;

 private:
  enum class Way { direct, staged, nowhere };

  CUresult enqueue_direct(StreamState& stream);
  CUresult enqueue_staged(Executor& session, StreamState& stream);
  Result<void> receive_piece(compression::PieceReader& reader, Way way, uint64_t piece, std::span<std::byte> scratch);
  void finish();

  const DeviceApi& api_;
  uint64_t enqueued_ = 0;       // staged: so many pieces have their place in the stream

  std::mutex mutex_;            // what follows
  std::condition_variable idle_;
  Way way_ = Way::nowhere;
  std::vector<bool> seen_;
  uint64_t missing_;
  unsigned active_ = 0;         // pieces that are being received
};

}  // namespace gpupool::worker
