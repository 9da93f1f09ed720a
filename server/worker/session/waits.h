// Threads that block in place of the executor: each parked wait occupies one thread until the device reports.
// Threads are created on demand and live until the end of the session. Any thread may call submit().
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

#include "server/worker/session/current_command.h"
#include "server/worker/session/dump.h"

namespace gpupool::worker {

constexpr size_t kMaxWaitThreads = 256;
constexpr size_t kMaxQueuedWaits = 65536;  // waits beyond the number of threads; further ones are refused

class WaitPool {
 public:
  using Task = std::function<void()>;
  // Description of a task for monitoring. `what`: a string literal.
  struct Purpose {
    Purpose(const char* what, uint64_t stream = CurrentCommand::kNoStream) : what(what), stream(stream) {}
    const char* what;
    uint64_t stream;  // the client's handle
  };

  WaitPool() = default;
  ~WaitPool() { stop(); }
  WaitPool(const WaitPool&) = delete;
  WaitPool& operator=(const WaitPool&) = delete;

  // Runs the task on a wait thread. Returns false, and does not run it, if too many tasks are queued or no
  // thread could be created. `tag` identifies the task's owner for drain(), usually a CUcontext.
  bool submit(const void* tag, Purpose purpose, Task task);
  // Waits until no task of `tag` is queued or running. Returns false if the deadline came first.
  bool drain(const void* tag, std::chrono::steady_clock::time_point deadline);
  // Drops queued tasks and waits for running ones.
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

  std::mutex mutex_;  // never held while a task runs
  std::condition_variable wake_;
  std::condition_variable drained_;
  std::deque<Tagged> queue_;
  std::list<Running> running_;
  std::unordered_map<const void*, size_t> open_;  // number of queued and running tasks per tag
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace gpupool::worker
