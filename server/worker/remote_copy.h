// A copy between the device and memory that the client has registered, moved by RemoteMemory: straight out of or into device
// memory where that can be registered (GPUDirect), else through staging memory (staged_copy.h).
//
// start() belongs to the executor's thread. Pieces are queued when they may be moved: at once, or by a wait thread when the
// stream, or the device with a chunk of staging memory, has got there. The reply is sent, and only then the gate opens: when the
// last piece has been read, or has been written and can be seen by the client.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "server/worker/bulk_copy.h"
#include "server/worker/device_windows.h"
#include "server/worker/remote_memory.h"
#include "server/worker/staged_copy.h"
#include "server/worker/stream_gates.h"

namespace gpupool::worker {

class Executor;

class RemoteCopy final : public BulkCopy, public RemoteMemory::Copy, public std::enable_shared_from_this<RemoteCopy> {
 public:
  struct Client {
    uint64_t memory;  // the rows, packed
    uint32_t key;
    bool to_device;
    bool orders_streams = false;  // kCopyOrdersStreams
  };
  // Registers the copy and gives `stream` its part. With an error nothing was registered.
  static CUresult start(Executor& session, StreamState& stream, const DeviceRows& rows, const Client& client, uint64_t sequence,
                        CUresult reply);
  RemoteCopy(Executor& session, ContextState& context, const DeviceRows& rows, const Client& client, uint64_t sequence,
             CUresult reply);
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
  void hand_over();
  // On a thread that may wait: has the pieces moved as the device allows it.
  void submit_ready();
  void submit(uint64_t first, uint64_t last);
  // The first result counts.
  void finish(CUresult result);
  void release();
  StagingChunk* chunk_of(uint64_t piece);

  Executor& session_;
  const Client client_;
  const uint64_t sequence_;
  const CUresult reply_;           // of an earlier command, to be told with this copy's success
  uint64_t pieces_ = 0;            // without the flush, which is one more
  std::vector<DeviceSpan> spans_;  // direct: the device memory, in order
  bool written_past_cpu_ = false;  // the network card writes device memory: the device is told before its stream goes on
  std::optional<StagedIn> in_;     // staged: one of these
  std::optional<StagedOut> out_;
  CUevent reached_ = nullptr;  // direct: the stream has come to the copy
  std::shared_ptr<StreamGate> gate_;
  // The RemoteMemory's thread's.
  size_t span_ = 0;
  uint64_t done_bytes_ = 0;        // of a direct copy: begun

  std::mutex mutex_;               // what follows
  std::condition_variable idle_;
  std::unordered_map<uint64_t, StagingChunk*> chunks_;  // of in_, by piece
  uint64_t unmoved_ = 0;           // pieces, and the flush
  unsigned active_ = 0;            // pieces under way
  bool finished_ = false;
  bool releasing_ = false;
  bool released_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpupool::worker
