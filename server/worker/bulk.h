// Copies from the device on their way to the client. The executor enqueues the device's part into staging memory; when
// an event says that a piece is there, it is sent.
//
// A lane is one stream's copies, in order. Whoever notices first sends: a wait thread that serves the lane, or anyone
// about to tell the client that work has completed (flush()), so that no such answer overtakes data that was ready before
// it. One mutex orders all sending of data, so an answer sent after flush() is behind that data on the wire. A stream that
// does not get on holds up nobody else's data.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "server/worker/contexts.h"
#include "server/worker/outbox.h"
#include "server/worker/output_capture.h"
#include "server/worker/staging.h"
#include "server/worker/waits.h"

namespace gpupool::worker {

constexpr size_t kMaxPendingPieces = 65536;

// A piece of a copy, or the reply that ends one (no chunk).
struct CopyPiece {
  StagingChunk* chunk = nullptr;
  CUevent event = nullptr;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint32_t size = 0;
  CUresult result = CUDA_SUCCESS;  // of the reply
};

class CopyLane {
 public:
  CopyLane(ContextState& context) : context(context.object), events(context.events) {}

  const CUcontext context;
  const std::shared_ptr<EventPool> events;
  std::deque<CopyPiece> pieces;     // the rest: under Bulk's items mutex
  bool served = false;              // a wait thread is on it
  CUevent watched = nullptr;        // the event that this thread waits for
  bool watched_released = false;    // it was sent by someone else meanwhile: the thread gives the event back
  CUresult failed = CUDA_SUCCESS;   // the device's error for the copy in front
};

class Bulk {
 public:
  // What device code printed goes before the reply that ends a copy.
  Bulk(const DeviceApi& api, Outbox& outbox, Staging& staging, WaitPool& waits, OutputCapture& capture,
       const std::atomic<bool>& output_possible)
      : api_(api), outbox_(outbox), staging_(staging), waits_(waits), capture_(capture), output_possible_(output_possible) {}

  // Executor's thread: appends to the stream's lane.
  void push(StreamState& stream, const CopyPiece& piece);
  // Executor's thread, after the pushes of one copy: a thread will send it, unless it was sent meanwhile.
  void serve(StreamState& stream);
  bool full() const { return pending_.load(std::memory_order_relaxed) >= kMaxPendingPieces; }
  // For monitoring: pieces and replies that wait; whether a thread is sending.
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }
  bool sending() { return !std::unique_lock(send_mutex_, std::try_to_lock); }
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Any thread that has a context current: sends what is ready now.
  void flush();
  // Executor's thread, the device part of everything in `context` being over: sends what is left, or forgets it.
  void drop_context(const ContextState& context);

 private:
  bool send_ready(CopyLane& lane, std::vector<CopyPiece>* replies);
  void wait_for(const std::shared_ptr<CopyLane>& lane);

  const DeviceApi& api_;
  Outbox& outbox_;
  Staging& staging_;
  WaitPool& waits_;
  OutputCapture& capture_;
  const std::atomic<bool>& output_possible_;
  std::mutex send_mutex_;   // taken before items_mutex_
  std::mutex items_mutex_;  // lanes_ and what is in them
  std::vector<std::shared_ptr<CopyLane>> lanes_;  // those with pieces
  std::atomic<size_t> pending_{0};
};

}  // namespace gpupool::worker
