// One operation on a stream: a node in the dependency graph of all queued work.
//
// An operation starts when all its predecessors are complete. The thread that completes the last of them, or
// that submits the operation, calls start(), which must not block: it does short work at once, or hands the
// work to another thread or to the device. complete() is called when the work is done. There is no central
// scheduler.
//
// Life cycle: make_ref, after() for each predecessor, submit(). From then on all members may be used from any
// thread.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "server/softgpu/exec/spin_lock.h"
#include "server/softgpu/runtime/costs.h"
#include "server/softgpu/runtime/object.h"

namespace gpupool::softgpu {

class Context;
class HardwareQueue;

class Op : public Object {
 public:
  // Adds a predecessor. Only before submit().
  void after(Op& predecessor);
  // Makes this operation wait until `front`, the operation in front of it in a hardware queue, leaves the
  // queue's head (see holds_queue()). `front` belongs to another stream and releases one operation at most.
  // Only before submit().
  void follow_in_queue(Op& front);
  // Ends the list of predecessors, and starts the operation if all are complete. The caller must not hold a
  // lock that start() or complete() of any operation takes.
  void submit();

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Waits until the operation is complete, with a short busy wait first if `spin`. Returns false if it
  // already was.
  bool wait(bool spin);

  // Sets the context whose error makes the operation be skipped. Only before submit().
  void set_context(Context* context) { context_ = context; }
  Context* context() const { return context_; }

  // Sets the hardware queue that the operation occupies an entry of until it is complete. Only before
  // submit().
  void set_queue(HardwareQueue* queue) { queue_ = queue; }

  // Returns a new, unsubmitted operation that does the same, or null if operations of this kind cannot be
  // part of a graph. Graphs launch clones of what was captured.
  virtual Ref<Op> clone() const { return nullptr; }

  // The cost that is charged to the thread that enqueues the operation.
  virtual Cost cost() const { return Cost::enqueue; }

 protected:
  ~Op() override = default;
  // Called when all predecessors are complete. Calls complete(), or arranges for it to be called.
  virtual void start() = 0;
  // Called in place of start() if the context has failed. Only completes the operation, unless a subclass
  // must free or signal something.
  virtual void skip() { complete(); }
  // True if the operation stays at the head of its hardware queue until it is complete: waits and host
  // functions. Other operations leave the head when they start.
  virtual bool holds_queue() const { return false; }
  void complete();

 private:
  static constexpr uint32_t kPending = 0, kAwaited = 1, kDone = 2;
  bool add_successor(Op& successor);
  void predecessor_done();
  static void run_ready(Ref<Op> op);
  void leave_queue_head();
  // A value of queue_follower_: the operation has left the queue's head.
  static Op* left_queue_head() { return reinterpret_cast<Op*>(1); }

  Context* context_ = nullptr;
  HardwareQueue* queue_ = nullptr;  // null: occupies no entry, like the nodes of graphs
  // The operation that leave_queue_head() releases, an owned reference; or left_queue_head().
  std::atomic<Op*> queue_follower_{nullptr};
  std::atomic<uint32_t> unmet_{1};  // predecessors not complete, plus one until submit()
  std::atomic<uint32_t> state_{kPending};
  SpinLock lock_;  // guards the successors
  uint32_t inline_count_ = 0;
  std::array<Op*, 2> inline_successors_{};  // owned references
  std::vector<Ref<Op>> more_successors_;
};

// Does nothing but join its predecessors (waits for events, barriers between streams).
class MarkerOp final : public Op {
 public:
  Ref<Op> clone() const override { return make_ref<MarkerOp>(); }
  Cost cost() const override { return Cost::stream_wait_event; }

 private:
  void start() override { complete(); }
};

// An operation whose creator does the work: it calls wait_until_ready(), does the work and calls finish().
// Synchronous copies use it to run without a change of threads.
class CallerRunsOp final : public Op {
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
// Busy-waits for at most 40 us; true if the word has changed.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t value);
uint64_t monotonic_nanoseconds();

}  // namespace gpupool::softgpu
