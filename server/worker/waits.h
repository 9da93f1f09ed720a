// Threads that block so that the executor need not: each parked wait occupies one until the device reports. Threads are
// made on demand and stay for the session. Any thread may submit.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/worker/at_work.h"
#include "server/worker/dump.h"

namespace gpupool::worker {

constexpr size_t kMaxWaitThreads = 256;
constexpr size_t kMaxQueuedWaits = 65536;  // parked waits beyond the threads; above it a wait is refused

class WaitPool {
 public:
  using Task = std::function<void()>;
  // For monitoring. `what`: a string literal.
  struct Purpose {
    Purpose(const char* what, uint64_t stream = AtWork::kNoStream) : what(what), stream(stream) {}
    const char* what;
    uint64_t stream;  // the client's handle
  };

  WaitPool() = default;
  ~WaitPool() { stop(); }
  WaitPool(const WaitPool&) = delete;
  WaitPool& operator=(const WaitPool&) = delete;

  // False: too many are queued, or no thread could be made. The task will not run then. `tag` is what it belongs to.
  bool submit(const void* tag, Purpose purpose, Task task);
  // Blocks until no task of `tag` is queued or running, or `deadline`. False: still running.
  bool drain(const void* tag, std::chrono::steady_clock::time_point deadline);
  // Drops what has not begun, waits for what has.
  void stop();
  void describe(admin::WorkerDump& dump);

 private:
  using Clock = std::chrono::steady_clock;
  struct Tagged {
    const void* tag;
    Purpose purpose;
    Task task;
  };
  struct Running {
    Purpose purpose;
    const ThreadActivity* activity;
    Clock::time_point since = Clock::now();
  };
  void run();

  std::mutex mutex_;  // never held during a task
  std::condition_variable wake_;
  std::condition_variable drained_;
  std::deque<Tagged> queue_;
  std::list<Running> running_;
  std::unordered_map<const void*, size_t> open_;  // queued and running tasks per tag
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace gpupool::worker
