#include "server/softgpu/runtime/value_ops.h"

#include <algorithm>
#include <shared_mutex>
#include <thread>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/runtime.h"

namespace gpupool::softgpu {
namespace {

// After a change: spin, then yield, then sleep between polls, twice as long each time up to kLongestSleep.
// All in nanoseconds.
constexpr uint64_t kBusyNanoseconds = 20'000;
constexpr uint64_t kYieldNanoseconds = 100'000;
constexpr uint64_t kShortestSleep = 5'000;
constexpr uint64_t kLongestSleep = 500'000;

bool holds(ValueCondition condition, uint64_t memory, uint64_t value, bool wide) {
  switch (condition) {
    case ValueCondition::at_least:  // cyclic, as in cuda.h: (int)(*addr - value) >= 0
      return wide ? static_cast<int64_t>(memory - value) >= 0
                  : static_cast<int32_t>(static_cast<uint32_t>(memory) - static_cast<uint32_t>(value)) >= 0;
    case ValueCondition::equal:
      return wide ? memory == value : static_cast<uint32_t>(memory) == static_cast<uint32_t>(value);
    case ValueCondition::any_bit: return ((memory & value) & (wide ? ~0ull : 0xffffffffull)) != 0;
    case ValueCondition::any_bit_clear: return (~(memory | value) & (wide ? ~0ull : 0xffffffffull)) != 0;
  }
  return true;
}

}  // namespace

bool ValueWaitOp::poll() {
  if (context() != nullptr && (context()->failed() || context()->ending())) {
    context()->fail(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    complete();
    return true;
  }
  uint64_t memory = 0;
  bool gone = false;
  {
    std::shared_lock guard(runtime().memory().access_lock());
    gone = !runtime().memory().accessible(address_, wide_ ? 8 : 4, false);
    if (!gone) {
      memory = wide_ ? __atomic_load_n(reinterpret_cast<const uint64_t*>(address_), __ATOMIC_ACQUIRE)
                     : __atomic_load_n(reinterpret_cast<const uint32_t*>(address_), __ATOMIC_ACQUIRE);
    }
  }
  if (gone) {
    if (context() != nullptr) context()->fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  } else if (!holds(condition_, memory, value_, wide_)) {
    return false;
  }
  complete();
  return true;
}

void PolledOp::start() {
  if (!poll()) runtime().value_waiter().park(Ref<PolledOp>::share(this));
}

bool SharedEventWaitOp::poll() {
  const bool over = context() != nullptr && (context()->failed() || context()->ending());
  if (!over && !event_->passed(number_)) return false;
  complete();
  return true;
}

class BatchOp::BatchEnd final : public Op {
 public:
  explicit BatchEnd(Ref<BatchOp> batch) : batch_(std::move(batch)) {}

 private:
  void start() override {
    batch_->complete();
    complete();
  }
  void skip() override { start(); }
  const Ref<BatchOp> batch_;
};

void BatchOp::start() {
  std::vector<Ref<Op>> ops;
  for (const Ref<Op>& operation : operations_) ops.push_back(operation->clone());
  ops.push_back(make_ref<BatchEnd>(Ref<BatchOp>::share(this)));
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i]->set_context(context());
    if (i != 0) ops[i]->after(*ops[i - 1]);
  }
  for (const Ref<Op>& op : ops) op->submit();
}

void ValueWriteOp::start() {
  bool gone = false;
  {
    std::shared_lock guard(runtime().memory().access_lock());
    gone = !runtime().memory().accessible(address_, wide_ ? 8 : 4, true);
    if (!gone && wide_) __atomic_store_n(reinterpret_cast<uint64_t*>(address_), value_, __ATOMIC_RELEASE);
    if (!gone && !wide_) {
      __atomic_store_n(reinterpret_cast<uint32_t*>(address_), static_cast<uint32_t>(value_),
                       __ATOMIC_RELEASE);
    }
  }
  if (gone && context() != nullptr) context()->fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  runtime().value_waiter().kick();
  complete();
}

void ValueWaiter::park(Ref<PolledOp> op) {
  parked_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::lock_guard guard(mutex_);
    arrived_.push_back(std::move(op));
    if (!started_) {
      started_ = true;
      std::thread([this] { work(); }).detach();
    }
  }
  kick();
}

void ValueWaiter::kick() {
  if (parked_.load(std::memory_order_seq_cst) == 0) return;
  kicks_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) futex_wake_all(kicks_);
}

void ValueWaiter::work() {
  std::vector<Ref<PolledOp>> parked;
  uint64_t moved_at = monotonic_nanoseconds();
  uint64_t sleep = kShortestSleep;
  uint32_t seen = kicks_.load(std::memory_order_seq_cst) - 1;  // as if kicked, to take the first arrivals
  for (;;) {
    const uint32_t kicks = kicks_.load(std::memory_order_seq_cst);
    bool moved = kicks != seen;
    seen = kicks;
    if (moved) {
      std::lock_guard guard(mutex_);
      parked.insert(parked.end(), std::make_move_iterator(arrived_.begin()),
                    std::make_move_iterator(arrived_.end()));
      arrived_.clear();
    }
    const size_t gone = std::erase_if(parked, [](const Ref<PolledOp>& op) { return op->poll(); });
    if (gone != 0) {
      parked_.fetch_sub(static_cast<uint32_t>(gone), std::memory_order_seq_cst);
      moved = true;
    }

    const uint64_t now = monotonic_nanoseconds();
    if (moved) {
      moved_at = now;
      sleep = kShortestSleep;
    }
    if (!parked.empty() && now - moved_at < kBusyNanoseconds) {
      pause_cpu();
    } else if (!parked.empty() && now - moved_at < kYieldNanoseconds) {
      sched_yield();
    } else {
      sleeping_.store(true, std::memory_order_seq_cst);
      if (kicks_.load(std::memory_order_seq_cst) == seen) {
        if (parked.empty()) {
          futex_wait(kicks_, seen);
        } else {
          futex_wait_for(kicks_, seen, sleep);
          sleep = std::min(sleep * 2, kLongestSleep);
        }
      }
      sleeping_.store(false, std::memory_order_seq_cst);
    }
  }
}

}  // namespace gpupool::softgpu
