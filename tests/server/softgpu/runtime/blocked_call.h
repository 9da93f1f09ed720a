// Runs a driver call on its own thread, for tests of calls that block. Used from the test's thread.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "tests/server/softgpu/runtime/fixture.h"

class BlockedCall {
 public:
  // `call` runs with the context current.
  BlockedCall(CUcontext context, std::function<CUresult()> call)
      : thread_([this, context, call = std::move(call)] {
          result_ = cuCtxSetCurrent(context);
          thread_id_ = static_cast<int>(syscall(SYS_gettid));
          if (result_ == CUDA_SUCCESS) result_ = call();
          returned_ = true;
        }) {}
  ~BlockedCall() {
    if (thread_.joinable()) thread_.join();
  }
  // Waits until the call has returned or its thread sleeps. True if it sleeps.
  bool blocks() const {
    for (int looks_asleep = 0; looks_asleep < 20;) {
      if (returned_) return false;
      looks_asleep = state() == 'S' ? looks_asleep + 1 : 0;
      std::this_thread::yield();
    }
    return !returned_;
  }
  bool returned() const { return returned_; }
  // Waits for the call and returns its result.
  CUresult result() {
    thread_.join();
    return result_;
  }

 private:
  // The thread's state in /proc; 0 before the call.
  char state() const {
    std::ifstream in("/proc/self/task/" + std::to_string(thread_id_) + "/stat");
    std::string line;
    std::getline(in, line);
    const size_t name_end = line.rfind(") ");
    return thread_id_ == 0 || name_end == std::string::npos ? '\0' : line[name_end + 2];
  }

  std::atomic<int> thread_id_{0};
  std::atomic<bool> returned_{false};
  CUresult result_ = CUDA_ERROR_UNKNOWN;
  std::thread thread_;
};
