// Small copies from the device to the client. The executor enqueues the device's copy into staging memory;
// when an event reports that a piece has arrived there, the piece is sent on the command connection.
//
// A lane holds the copies of one stream, in order. Pieces are sent by a wait thread that serves the lane, or
// by any thread that is about to tell the client that work has completed (flush()), so that this message
// cannot overtake data that was ready before it. One mutex orders all sending of data, so a message sent
// after flush() is behind that data on the wire. A stalled stream does not delay the data of other streams.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "server/worker/copies/staging.h"
#include "server/worker/session/contexts.h"
#include "server/worker/session/outbox.h"
#include "server/worker/session/output_capture.h"
#include "server/worker/session/waits.h"

namespace gpupool::worker {

constexpr size_t kMaxPendingPieces = 65536;

// A piece of a copy or, if `chunk` is null, the reply that ends a copy.
struct CopyPiece {
  StagingChunk* chunk = nullptr;
  CUevent event = nullptr;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint32_t size = 0;
  CUresult result = CUDA_SUCCESS;  // of a reply
};

class CopyLane {
 public:
  CopyLane(ContextState& context) : context(context.object), events(context.events) {}

  const CUcontext context;
  const std::shared_ptr<EventPool> events;
  std::deque<CopyPiece> pieces;  // this and the rest: guarded by SmallCopies::items_mutex_
  bool served = false;           // a wait thread is serving this lane
  CUevent watched = nullptr;     // event that the wait thread is waiting for
  // Another thread has sent the watched piece; the wait thread must return the event to the pool.
  bool watched_released = false;
  CUresult failed = CUDA_SUCCESS;  // error of the front copy on the device
};

class SmallCopies {
 public:
  // Output of device code is sent before the reply that ends a copy.
  SmallCopies(const DeviceApi& api, Outbox& outbox, Staging& staging, WaitPool& waits, OutputCapture& capture)
      : api_(api), outbox_(outbox), staging_(staging), waits_(waits), capture_(capture) {}

  // Appends a piece to the stream's lane. Executor's thread.
  void push(StreamState& stream, const CopyPiece& piece);
  // Call after the pushes of one copy: starts a wait thread that sends it, unless it has been sent by then.
  // Executor's thread.
  void serve(StreamState& stream);
  bool full() const { return pending_.load(std::memory_order_relaxed) >= kMaxPendingPieces; }
  // For monitoring: number of unsent pieces and replies; whether a thread is sending.
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }
  bool sending() { return !std::unique_lock(send_mutex_, std::try_to_lock); }
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Sends everything that is ready. Any thread that has a context current.
  void flush();
  // Sends what is left in the lanes of `context`, and drops the rest. No work of the context may be running
  // on the device. Executor's thread.
  void drop_context(const ContextState& context);

 private:
  bool send_ready(CopyLane& lane, std::vector<CopyPiece>* replies);
  void wait_for(const std::shared_ptr<CopyLane>& lane);

  const DeviceApi& api_;
  Outbox& outbox_;
  Staging& staging_;
  WaitPool& waits_;
  OutputCapture& capture_;
  std::mutex send_mutex_;                         // taken before items_mutex_
  std::mutex items_mutex_;                        // guards lanes_ and their contents
  std::vector<std::shared_ptr<CopyLane>> lanes_;  // lanes that have pieces
  std::atomic<size_t> pending_{0};
};

}  // namespace gpupool::worker
