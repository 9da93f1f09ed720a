// A copy between device memory and memory that the client has registered, moved by RemoteMemory: directly
// from or to device memory if that can be registered (GPUDirect RDMA), else through staging memory
// (staged_copy.h).
//
// start(): executor's thread. Pieces are submitted when they may be moved: at once, or by a wait thread when
// the stream has reached the copy or a staging chunk is ready. When the last piece has been read, or was
// written and is visible to the client, the reply is sent, and then the gate opens.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "server/worker/copies/bulk_copy.h"
#include "server/worker/copies/remote_memory.h"
#include "server/worker/copies/staged_copy.h"
#include "server/worker/memory/device_windows.h"
#include "server/worker/session/stream_gates.h"

namespace gpupool::worker {

class Copies;

class RemoteCopy final : public BulkCopy,
                         public RemoteMemory::Copy,
                         public std::enable_shared_from_this<RemoteCopy> {
 public:
  struct Client {
    uint64_t memory;  // address of the packed rows in the client
    uint32_t key;
    bool to_device;
    bool orders_streams = false;  // kCopyOrdersStreams
  };
  // Registers the copy and enqueues its device part in `stream`. After an error nothing is registered.
  static CUresult start(Copies& copies, StreamState& stream, const DeviceRows& rows, const Client& client,
                        uint64_t sequence, CUresult reply);
  RemoteCopy(Copies& copies, ContextState& context, const DeviceRows& rows, const Client& client,
             uint64_t sequence, CUresult reply);
  ~RemoteCopy() override;

  std::optional<RemoteMemory::Move> begin(uint64_t piece) override;
  void end(uint64_t piece) override;
  void lost() override { finish(CUDA_ERROR_UNKNOWN); }
  void cancel() override;

 private:
  CUresult begin_direct(StreamState& stream);
  CUresult begin_staged(StreamState& stream);
  void close_gate(StreamState& stream);
  void give_back(StreamState& stream);
  void submit_when_ready();
  // Submits the pieces as they become ready. Runs on a thread that may block.
  void submit_ready();
  void submit(uint64_t first, uint64_t last);
  // Ends the copy; only the first call's result counts.
  void finish(CUresult result);
  void release();
  StagingChunk* chunk_of(uint64_t piece);

  Copies& copies_;
  const Client client_;
  const uint64_t sequence_;
  const CUresult reply_;           // deferred error of an earlier command, reported if this copy succeeds
  uint64_t pieces_ = 0;            // without the final flush, which counts as one more
  std::vector<DeviceSpan> spans_;  // direct: the device memory, in order of addresses
  // The network card writes device memory: cuFlushGPUDirectRDMAWrites is needed before the stream continues.
  bool written_past_cpu_ = false;
  std::optional<StagedIn> in_;  // staged: one of in_ and out_
  std::optional<StagedOut> out_;
  CUevent reached_ = nullptr;  // direct: passes when the stream has reached the copy
  std::shared_ptr<StreamGate> gate_;
  // Used by RemoteMemory's thread only:
  size_t span_ = 0;
  uint64_t done_bytes_ = 0;  // bytes of a direct copy that were begun

  std::mutex mutex_;  // guards the rest
  std::condition_variable idle_;
  std::unordered_map<uint64_t, StagingChunk*> chunks_;  // chunks of in_, by piece
  uint64_t unmoved_ = 0;                                // pieces and flush that have not ended
  unsigned active_ = 0;                                 // pieces in progress
  bool finished_ = false;
  bool releasing_ = false;
  bool released_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpupool::worker
