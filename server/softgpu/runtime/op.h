// One operation on a stream, as a node of the graph of everything that is queued.
//
// An operation starts when all its predecessors are complete: whichever thread completes the last of them (or
// submits the operation) calls start(), which must not block: it does the work at once when that is short, or
// hands it to a thread or to the device, and calls complete() when the work is done. Nothing is scheduled by
// a central loop.
//
// Life: make_ref, after() for each predecessor, submit(). All members may then be used from any thread.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "server/softgpu/runtime/costs.h"
#include "server/softgpu/runtime/object.h"
#include "server/softgpu/exec/spin_lock.h"

namespace gpupool::softgpu {

class Context;
class HardwareQueue;

class Op : public Object {
 public:
  // Names a predecessor. Only before submit().
  void after(Op& predecessor);
  // The operation in front of this one in a hardware queue, of another stream: this one starts when it has left the queue's head (see
  // holds_queue()). An operation has at most one behind it. Only before submit().
  void issue_after(Op& front);
  // No predecessor will follow: starts at once when there is none left. Must not be called with a lock held
  // that start() or complete() of any operation could want.
  void submit();

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Returns when done; `spin` allows a short busy wait first. False if it was done already.
  bool wait(bool spin);

  // The context whose error makes the operation be skipped. Set before submit().
  void set_context(Context* context) { context_ = context; }
  Context* context() const { return context_; }

  // The operation takes a place in a hardware queue until it is complete. Set before submit().
  void set_queue(HardwareQueue* queue) { queue_ = queue; }

  // A fresh, unsubmitted operation that does the same (graphs launch copies of what was captured); null when
  // this operation cannot be part of a graph.
  virtual Ref<Op> clone() const { return nullptr; }

  // Charged to the caller that enters the operation into a stream.
  virtual Cost cost() const { return Cost::enqueue; }

 protected:
  ~Op() override = default;
  // All predecessors are complete. Ends, now or later, in complete().
  virtual void start() = 0;
  // As start(), when the context has failed: the operation does nothing, unless a subclass must still tell
  // somebody.
  virtual void skip() { complete(); }
  // Stays at the head of its hardware queue until it is complete: what waits, and what the host does. Other operations leave the head when
  // they start.
  virtual bool holds_queue() const { return false; }
  void complete();

 private:
  static constexpr uint32_t kPending = 0, kAwaited = 1, kDone = 2;
  bool add_successor(Op& successor);
  void predecessor_done();
  static void run_ready(Ref<Op> op);
  void issue();
  // Stands in behind_ for "has left the queue's head".
  static Op* issued() { return reinterpret_cast<Op*>(1); }

  Context* context_ = nullptr;
  HardwareQueue* queue_ = nullptr;  // null: takes no place of its own, as the nodes of a graph
  std::atomic<Op*> behind_{nullptr};  // what issue() lets go on, an owned reference; issued()
  std::atomic<uint32_t> unmet_{1};  // predecessors not complete, plus one until submit()
  std::atomic<uint32_t> state_{kPending};
  SpinLock lock_;  // guards the successors against completion
  uint32_t inline_count_ = 0;
  std::array<Op*, 2> inline_successors_{};  // owned references
  std::vector<Ref<Op>> more_successors_;
};

// Does nothing: joins predecessors (waiting for an event, a barrier between streams).
class MarkerOp final : public Op {
 public:
  Ref<Op> clone() const override { return make_ref<MarkerOp>(); }
  Cost cost() const override { return Cost::stream_wait_event; }

 private:
  void start() override { complete(); }
};

// Run by the thread that made it: the thread waits until the operation is ready, does the work, and calls
// finish(). This is how synchronous copies run without a change of threads.
class CallerOp final : public Op {
 public:
  void wait_until_ready(bool spin);
  void finish() { complete(); }
  Cost cost() const override { return Cost::copy; }

 private:
  void start() override;
  void skip() override { start(); }
  std::atomic<uint32_t> ready_{0};
};

// --- Waiting on a 32-bit word ---
void futex_wait(const std::atomic<uint32_t>& word, uint32_t while_value);
// Returns after at most `nanoseconds`.
void futex_wait_for(const std::atomic<uint32_t>& word, uint32_t while_value, uint64_t nanoseconds);
void futex_wake_all(const std::atomic<uint32_t>& word);
// A short busy wait; true when the word has changed.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t value);
uint64_t monotonic_nanoseconds();

}  // namespace gpupool::softgpu
