// What each thread of the worker is doing, for other threads to show: the driver function that it is in, and the reason for a wait. The words
// are the thread's own and cost a store each; whoever reads them must know that the thread lives (at_work.h, waits.h, bulk_links.h).
#pragma once
#include <atomic>

namespace gpupool::worker {

// Names and reasons are string literals, or live as long as the process.
struct ThreadActivity {
  std::atomic<const char*> driver_function{nullptr};  // null: in none
  std::atomic<const char*> waits_for{nullptr};        // of the innermost Waiting; null: nothing of the worker's own
};

inline constinit thread_local ThreadActivity t_activity;

// Names the driver function that the calling thread is in, during its lifetime. Null: none.
class InDriver {
 public:
  explicit InDriver(const char* function) : before_(t_activity.driver_function.load(std::memory_order_relaxed)) {
    t_activity.driver_function.store(function, std::memory_order_relaxed);
  }
  ~InDriver() { t_activity.driver_function.store(before_, std::memory_order_relaxed); }
  InDriver(const InDriver&) = delete;
  InDriver& operator=(const InDriver&) = delete;

 private:
  const char* const before_;
};

// Sets the reason for a wait during its lifetime, such as "its turn on the GPU".
class Waiting {
 public:
  explicit Waiting(const char* what) : before_(t_activity.waits_for.load(std::memory_order_relaxed)) {
    t_activity.waits_for.store(what, std::memory_order_relaxed);
  }
  ~Waiting() { t_activity.waits_for.store(before_, std::memory_order_relaxed); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const char* const before_;
};

// A function of the device library, named while a thread is in it.
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
