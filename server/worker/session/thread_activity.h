// The current activity of each worker thread, for display by other threads: the driver function that it is
// in, and the reason for its wait. Each thread writes its own fields, at the cost of a store; readers must
// ensure that the thread is alive (current_command.h, waits.h, bulk_connections.h).
#pragma once
#include <atomic>
#include <chrono>

namespace gpupool::worker {

// Names and reasons must be string literals or live as long as the process.
struct ThreadActivity {
  std::atomic<const char*> driver_function{nullptr};  // null: not in the driver
  std::atomic<const char*> waits_for{nullptr};        // reason of the innermost Waiting; null: none
};

inline constinit thread_local ThreadActivity t_activity;

// Sets the driver function that the calling thread is in, for the lifetime of this object. Null: none.
class InDriver {
 public:
  explicit InDriver(const char* function)
      : before_(t_activity.driver_function.load(std::memory_order_relaxed)) {
    t_activity.driver_function.store(function, std::memory_order_relaxed);
  }
  ~InDriver() { t_activity.driver_function.store(before_, std::memory_order_relaxed); }
  InDriver(const InDriver&) = delete;
  InDriver& operator=(const InDriver&) = delete;

 private:
  const char* const before_;
};

// Called at the end of each wait, by the thread that has waited. Null, unless the session has a timeline
// (server/worker/timeline/).
using WaitListener = void (*)(const char* reason, std::chrono::steady_clock::time_point since);
inline constinit std::atomic<WaitListener> wait_listener{nullptr};

// Sets the reason for a wait, such as "its turn on the GPU", for the lifetime of this object.
class Waiting {
 public:
  explicit Waiting(const char* what)
      : what_(what), before_(t_activity.waits_for.load(std::memory_order_relaxed)) {
    t_activity.waits_for.store(what, std::memory_order_relaxed);
    if (wait_listener.load(std::memory_order_relaxed)) [[unlikely]]
      since_ = std::chrono::steady_clock::now();
  }
  ~Waiting() {
    t_activity.waits_for.store(before_, std::memory_order_relaxed);
    if (since_ == std::chrono::steady_clock::time_point{}) [[likely]]
      return;
    if (const WaitListener listener = wait_listener.load(std::memory_order_relaxed)) listener(what_, since_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const char* const what_;
  const char* const before_;
  std::chrono::steady_clock::time_point since_{};
};

// A function of the device library that reports itself with InDriver while it is called.
template <class Function>
class DeviceCall;
template <class Result, class... Arguments>
class DeviceCall<Result (*)(Arguments...)> {
 public:
  using Function = Result (*)(Arguments...);
  explicit DeviceCall(const char* name) : name_(name) {}
  DeviceCall& operator=(Function function) {
    function_ = function;
    return *this;
  }
  explicit operator bool() const { return function_ != nullptr; }
  Result operator()(Arguments... arguments) const {
    const InDriver in(name_);
    return function_(arguments...);
  }

 private:
  const char* name_;
  Function function_ = nullptr;
};

}  // namespace gpupool::worker
