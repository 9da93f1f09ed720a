#include "server/worker/session/waits.h"

#include <system_error>

#include "protocol/control/dump.pb.h"

namespace gpupool::worker {

bool WaitPool::submit(const void* tag, Purpose purpose, Task task) {
  std::unique_lock lock(mutex_);
  if (stopping_ || queue_.size() >= kMaxQueuedWaits) return false;
  queue_.push_back({tag, purpose, std::move(task)});
  ++open_[tag];
  if (queue_.size() > idle_ && threads_.size() < kMaxWaitThreads) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) {
        queue_.pop_back();
        if (--open_[tag] == 0) open_.erase(tag);
        return false;
      }
    }
  }
  lock.unlock();
  wake_.notify_one();
  return true;
}

void WaitPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    Tagged work = std::move(queue_.front());
    queue_.pop_front();
    const auto running = running_.insert(running_.end(), {work.purpose, &t_activity});
    lock.unlock();
    work.task();
    work.task = nullptr;
    lock.lock();
    running_.erase(running);
    if (--open_[work.tag] == 0) {
      open_.erase(work.tag);
      drained_.notify_all();
    }
  }
}

bool WaitPool::drain(const void* tag, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return drained_.wait_until(lock, deadline, [&] { return !open_.contains(tag); });
}

void WaitPool::describe(admin::WorkerDump& dump) {
  const std::lock_guard lock(mutex_);
  dump.set_waits_running(running_.size());
  dump.set_waits_queued(queue_.size());
  for (const Running& running : running_) {
    if (dump.waits_size() == kMostListed) return;
    admin::ParkedWait& wait = *dump.add_waits();
    wait.set_purpose(running.purpose.what);
    if (running.purpose.stream != CurrentCommand::kNoStream) wait.set_stream(running.purpose.stream);
    if (const char* const function = running.activity->driver_function.load(std::memory_order_relaxed))
      wait.set_driver_function(function);
    if (const char* const waits_for = running.activity->waits_for.load(std::memory_order_relaxed))
      wait.set_waits_for(waits_for);
    wait.set_age_ms(age_ms(running.since));
  }
}

void WaitPool::stop() {
  std::deque<Tagged> dropped;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (auto& thread : threads) thread.join();
}

}  // namespace gpupool::worker
