// A copy between the device and memory that the client has registered, moved by RemoteMemory: straight out of or into device
// memory where that can be registered (GPUDirect), else through a ring of pinned pieces (bulk_copy.h).
//
// start() belongs to the executor's thread. Pieces are queued when they may be moved: at once, or by a wait thread when the
// stream, or the device with a place in the ring, has got there. The reply is sent, and only then the stream goes on: when the
// last piece has been read, or has been written and can be seen by the client.
#pragma once
#include <deque>

#include "server/worker/bulk_copy.h"
#include "server/worker/device_windows.h"
#include "server/worker/remote_memory.h"

namespace gpupool::worker {

class Executor;

class RemoteCopy final : public BulkCopy, public RemoteMemory::Copy, public std::enable_shared_from_this<RemoteCopy> {
 public:
  struct Client {
    uint64_t memory;  // the rows, packed
    uint32_t key;
    bool to_device;
  };
  // Registers the copy and enqueues what `stream` has to do. With an error nothing was registered.
  static CUresult start(Executor& session, StreamState& stream, const DeviceRows& rows, const Client& client, uint64_t sequence,
                        CUresult reply);
  RemoteCopy(Executor& session, ContextState& context, const DeviceRows& rows, const Client& client, uint64_t sequence,
             CUresult reply);
  ~RemoteCopy() override;

  std::optional<RemoteMemory::Move> begin(uint64_t piece) override;
  void end(uint64_t piece) override;
  void lost() override { finish(CUDA_ERROR_UNKNOWN); }
  void cancel() override;
  // Waits for the device, and hands the pieces over as it gets to them.
  void queue_ready();

 private:
  CUresult enqueue_direct(StreamState& stream);
  CUresult enqueue_staged(StreamState& stream);
  void hand_over(StreamState& stream);
  void submit(uint64_t first, uint64_t last);
  // The first result counts.
  void finish(CUresult result);
  void release();

  Executor& session_;
  const Client client_;
  const uint64_t sequence_;
  const CUresult reply_;           // of an earlier command, to be told with this copy's success
  uint64_t pieces_ = 0;            // without the flush, which is one more
  std::vector<DeviceSpan> spans_;  // direct: the device memory, in order
  bool written_past_cpu_ = false;  // the network card writes device memory: the device is told before its stream goes on
  // The executor's until hand_over(), then its who waits for them: staged, piece `waits_from_ + i` may be moved after the i-th;
  // direct, all of them after the only one.
  std::vector<CUevent> ready_;
  uint64_t waits_from_ = 0;
  // The RemoteMemory's thread's.
  size_t span_ = 0;
  uint64_t done_bytes_ = 0;        // of a direct copy: begun

  std::mutex mutex_;               // what follows
  std::condition_variable idle_;
  uint64_t unmoved_ = 0;           // pieces, and the flush
  unsigned active_ = 0;            // pieces under way
  bool finished_ = false;
  bool releasing_ = false;
  bool released_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

// The copies of one stream that wait for the device: one wait thread for all of them, so that a long row of copies leaves threads
// for others. Lives as long as that thread is on it.
class RemoteLane {
 public:
  // False: the thread is through with it.
  bool push(std::shared_ptr<RemoteCopy> copy);
  void serve();

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<RemoteCopy>> copies_;
  bool over_ = false;
};

}  // namespace gpupool::worker
