#include "server/softgpu/runtime/op.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <mutex>

#include "server/softgpu/runtime/context.h"
#include "server/softgpu/runtime/hardware_queue.h"

namespace gpupool::softgpu {
namespace {

// A synchronous wait spins for kPauseNanoseconds, then yields up to kYieldNanoseconds in all, and then
// sleeps.
constexpr uint64_t kPauseNanoseconds = 4'000;
constexpr uint64_t kYieldNanoseconds = 40'000;

long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

template <class Done>
bool spin_until(const Done& done) {
  const uint64_t begin = monotonic_nanoseconds();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    const uint64_t spent = monotonic_nanoseconds() - begin;
    if (spent > kYieldNanoseconds) return false;
    if (spent > kPauseNanoseconds) sched_yield();
  }
}

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t while_value) {
  futex(word, FUTEX_WAIT_PRIVATE, while_value, nullptr);
}
void futex_wait_for(const std::atomic<uint32_t>& word, uint32_t while_value, uint64_t nanoseconds) {
  const timespec timeout{static_cast<time_t>(nanoseconds / 1'000'000'000),
                         static_cast<long>(nanoseconds % 1'000'000'000)};
  futex(word, FUTEX_WAIT_PRIVATE, while_value, &timeout);
}
void futex_wake_all(const std::atomic<uint32_t>& word) {
  futex(word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
}

bool spin_while(const std::atomic<uint32_t>& word, uint32_t value) {
  return spin_until([&] { return word.load(std::memory_order_acquire) != value; });
}

uint64_t monotonic_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

bool Op::add_successor(Op& successor) {
  if (done()) return false;
  std::lock_guard guard(lock_);
  if (done()) return false;
  if (inline_count_ < inline_successors_.size()) {
    successor.add_reference();
    inline_successors_[inline_count_++] = &successor;
  } else {
    more_successors_.push_back(Ref<Op>::share(&successor));
  }
  return true;
}

void Op::after(Op& predecessor) {
  if (predecessor.done()) return;
  unmet_.fetch_add(1, std::memory_order_relaxed);
  if (!predecessor.add_successor(*this)) unmet_.fetch_sub(1, std::memory_order_relaxed);
}

void Op::follow_in_queue(Op& front) {
  if (front.done()) return;
  unmet_.fetch_add(1, std::memory_order_relaxed);
  add_reference();
  Op* nobody = nullptr;
  if (front.queue_follower_.compare_exchange_strong(nobody, this, std::memory_order_acq_rel)) return;
  unmet_.fetch_sub(1, std::memory_order_relaxed);
  drop_reference();
}

void Op::leave_queue_head() {
  if (queue_follower_.load(std::memory_order_relaxed) == left_queue_head()) return;
  if (Op* const next = queue_follower_.exchange(left_queue_head(), std::memory_order_acq_rel))
    Ref<Op>::adopt(next)->predecessor_done();
}

void Op::submit() {
  predecessor_done();
}

void Op::predecessor_done() {
  if (unmet_.fetch_sub(1, std::memory_order_acq_rel) == 1) run_ready(Ref<Op>::share(this));
}

// Completing an operation may make others ready, which complete at once in turn. A queue per thread in place
// of recursion bounds the stack's depth.
void Op::run_ready(Ref<Op> op) {
  thread_local std::vector<Ref<Op>>* queue = nullptr;
  if (queue != nullptr) {
    queue->push_back(std::move(op));
    return;
  }
  std::vector<Ref<Op>> mine;
  queue = &mine;
  for (;;) {
    if (op->queue_ != nullptr && !op->holds_queue()) op->leave_queue_head();
    if (op->context_ != nullptr && op->context_->failed()) {
      op->skip();
    } else {
      op->start();
    }
    if (mine.empty()) break;
    op = std::move(mine.back());
    mine.pop_back();
  }
  queue = nullptr;
}

void Op::complete() {
  // The state changes last, because a thread that sees kDone may free the memory that the operation used.
  // `self` keeps the operation itself until the function returns.
  const Ref<Op> self = Ref<Op>::share(this);
  if (queue_ != nullptr) {
    queue_->remove_operation();  // the queue is still there: its context waits for its operations
    leave_queue_head();
  }
  std::array<Op*, 2> first;
  uint32_t first_count;
  std::vector<Ref<Op>> more;
  uint32_t before;
  {
    std::lock_guard guard(lock_);
    first = inline_successors_;
    first_count = std::exchange(inline_count_, 0);
    more = std::move(more_successors_);
    before = state_.exchange(kDone, std::memory_order_acq_rel);
  }
  if (before == kAwaited) futex_wake_all(state_);
  for (uint32_t i = 0; i < first_count; ++i) {
    const Ref<Op> successor = Ref<Op>::adopt(first[i]);
    successor->predecessor_done();
  }
  for (const Ref<Op>& successor : more) successor->predecessor_done();
}

bool Op::wait(bool spin) {
  if (done()) return false;
  if (spin && spin_until([this] { return done(); })) return true;
  for (;;) {
    uint32_t state = kPending;
    state_.compare_exchange_strong(state, kAwaited, std::memory_order_acq_rel);
    if (state == kDone) return true;
    futex_wait(state_, kAwaited);
    if (done()) return true;
  }
}

void CallerRunsOp::start() {
  if (ready_.exchange(1, std::memory_order_acq_rel) == 2) futex_wake_all(ready_);
}

void CallerRunsOp::wait_until_ready(bool spin) {
  const auto ready = [this] { return ready_.load(std::memory_order_acquire) == 1; };
  if (ready() || (spin && spin_until(ready))) return;
  for (;;) {
    uint32_t state = 0;
    ready_.compare_exchange_strong(state, 2, std::memory_order_acq_rel);
    if (state == 1) return;
    futex_wait(ready_, 2);
    if (ready()) return;
  }
}

}  // namespace gpupool::softgpu
