// Stream memory operations: a stream waits until a word in memory has a value, or writes a word. Waits for
// events that other processes record are polled in the same way.
//
// Another stream, a kernel, or a plain store of the host may write the word. So waiting operations are parked
// with one thread, which polls their words: continuously after a change, then at growing intervals up to 0.5
// ms. It polls at once when the runtime itself writes a word. Thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "server/softgpu/memory/shared_event.h"
#include "server/softgpu/runtime/op.h"

namespace gpupool::softgpu {

enum class ValueCondition : uint8_t { at_least, equal, any_bit, any_bit_clear };

// An operation that is complete once poll() has returned true. start() polls it once, then ValueWaiter's
// thread does.
class PolledOp : public Op {
 protected:
  void start() override;
  bool holds_queue() const override { return true; }
  virtual bool poll() = 0;

 private:
  friend class ValueWaiter;
};

class ValueWaitOp final : public PolledOp {
 public:
  ValueWaitOp(uint64_t address, uint64_t value, bool wide, ValueCondition condition)
      : address_(address), value_(value), wide_(wide), condition_(condition) {}
  Ref<Op> clone() const override { return make_ref<ValueWaitOp>(address_, value_, wide_, condition_); }

 private:
  // True if the operation is complete: the condition holds, the memory is gone, or the context has failed or
  // is ending.
  bool poll() override;

  const uint64_t address_;
  const uint64_t value_;
  const bool wide_;  // 64 bits, else 32
  const ValueCondition condition_;
};

// Waits for another process's record of an interprocess event.
class SharedEventWaitOp final : public PolledOp {
 public:
  SharedEventWaitOp(std::shared_ptr<SharedEvent> event, uint64_t number)
      : event_(std::move(event)), number_(number) {}

 private:
  bool poll() override;

  const std::shared_ptr<SharedEvent> event_;
  const uint64_t number_;
};

class ValueWriteOp final : public Op {
 public:
  ValueWriteOp(uint64_t address, uint64_t value, bool wide) : address_(address), value_(value), wide_(wide) {}
  Ref<Op> clone() const override { return make_ref<ValueWriteOp>(address_, value_, wide_); }

 private:
  void start() override;
  const uint64_t address_;
  const uint64_t value_;
  const bool wide_;
};

// Runs clones of several operations in order: a batch (cuStreamBatchMemOp) as a node of a graph.
class BatchOp final : public Op {
 public:
  explicit BatchOp(std::vector<Ref<Op>> operations) : operations_(std::move(operations)) {}
  Ref<Op> clone() const override { return make_ref<BatchOp>(operations_); }

 private:
  class BatchEnd;
  void start() override;
  const std::vector<Ref<Op>> operations_;
};

// Polls parked operations, on a thread that starts with the first of them.
class ValueWaiter {
 public:
  void park(Ref<PolledOp> op);
  // Makes the thread poll at once, after something that parked operations may wait for.
  void kick();

 private:
  void work();

  std::mutex mutex_;  // guards arrived_ and started_
  std::vector<Ref<PolledOp>> arrived_;
  bool started_ = false;
  std::atomic<uint32_t> parked_{0};  // operations parked or arriving
  std::atomic<uint32_t> kicks_{0};   // futex word: changes with every arrival and kick
  std::atomic<bool> sleeping_{false};
};

}  // namespace gpupool::softgpu
